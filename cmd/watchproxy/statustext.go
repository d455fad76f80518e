package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// statusText lays a status out for people.
func statusText(s *status) string {
	var b strings.Builder
	r, u, m := s.Requests, s.ToUpstream, s.Memory
	ratio := "-"
	if r.HitRatio != nil {
		ratio = percent(*r.HitRatio)
	}
	limit := ""
	if m.Limit > 0 {
		limit = " of " + size(m.Limit)
	}
	fmt.Fprintf(&b, "watchproxy %s, up %s, in front of %s\n\n", s.Version, age(s.UptimeSeconds), s.Upstream)
	for _, line := range [][2]string{
		{"memory", fmt.Sprintf("%s%s resident: objects %s, event logs %s, derived %s", size(m.Resident), limit, size(m.Objects), size(m.Log), size(m.Derived))},
		{"requests", fmt.Sprintf("%s from the cache, %s forwarded (%s shared), %s refused", count(r.Cache), count(r.Forwarded), count(r.Shared), count(r.Refused))},
		{"hit ratio", ratio},
		{"upstream", fmt.Sprintf("%s requests: %s forwarded, %s of feeds, %s reviews", count(u.Total), count(u.Forwarded), count(u.Feeds), count(u.Reviews))},
		{"saved", count(u.Saved) + " requests"},
		{"fresh", s.MostRecent.text()},
		{"watches", count(int64(s.Watches))},
	} {
		fmt.Fprintf(&b, "%-10s %s\n", line[0], line[1])
	}
	b.WriteByte('\n')
	if len(s.Feeds) == 0 {
		b.WriteString("no feeds: the first request for a resource starts one\n")
		return b.String()
	}
	rows := [][]string{{"RESOURCE", "ENCODING", "STATE", "OBJECTS", "SIZE", "LOG", "RESOURCEVERSION", "AGE", "WATCHES", "EVENTS", "DELIVERED"}}
	for _, f := range s.Feeds {
		rows = append(rows, []string{
			f.name(), f.Encoding, f.state(), count(int64(f.Objects)), size(f.ObjectBytes), count(int64(f.LogEvents)),
			strconv.FormatUint(f.ResourceVersion, 10), age(f.LastSignSeconds), count(int64(f.Watches)),
			count(int64(f.Events)), count(int64(f.Delivered)), //nolint:gosec // counts of events
		})
	}
	const words = 3 // columns of words stand to the left, figures to the right
	writeTable(&b, rows, words)
	return b.String()
}

// text tells what showed most often that the cache was up to date, and at what cost.
func (r mostRecent) text() string {
	all, upstream := 0.0, 0.0
	for _, n := range r.Reads {
		all += n
	}
	for by, seconds := range r.UpstreamSeconds {
		if by != "direct" { // those it would have answered anyway
			upstream += seconds
		}
	}
	outcomes := slices.SortedFunc(maps.Keys(r.Reads), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Reads[b], r.Reads[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, outcome := range outcomes {
		parts = append(parts, percent(r.Reads[outcome]/all)+" "+outcome)
	}
	how := ""
	if len(parts) > 0 {
		how = " (" + strings.Join(parts, ", ") + ")"
	}
	return fmt.Sprintf("%s reads of the most recent state%s: upstream took %.1f s for them, and would have taken %.1f s for the lists among them", count(int64(all)), how, upstream, r.SavedSeconds)
}

// percent rounds down, as the page does: 100.0 % is all.
func percent(ratio float64) string {
	const perMille = 1000
	return fmt.Sprintf("%.1f %%", math.Floor(ratio*perMille)/10)
}

// name is a feed's resource as kubectl writes it, with its version.
func (f feedStatus) name() string {
	if f.Group == "" {
		return f.Resource + "." + f.Version
	}
	return f.Resource + "." + f.Version + "." + f.Group
}

func (f feedStatus) state() string {
	switch {
	case f.Failing:
		return "lost " + age(f.LostSeconds)
	case !f.Synced:
		return "syncing"
	}
	return "synced"
}

// writeTable aligns the first columns to the left and the others to the right.
func writeTable(b *strings.Builder, rows [][]string, left int) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < left {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		b.WriteByte('\n')
	}
}

// size writes bytes in binary units.
func size(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/unit, "KMGTPE"
	for value >= unit {
		value, units = value/unit, units[1:]
	}
	if value < 10 {
		return fmt.Sprintf("%.1f %ciB", value, units[0])
	}
	return fmt.Sprintf("%.0f %ciB", value, units[0])
}

// count writes a number with its thousands apart.
func count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// age writes seconds as one would say them.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 24*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
