package status

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// writeText writes a status as text for people.
func (s *Status) writeText(to io.Writer) error {
	r, u, m := s.Requests, s.ToUpstream, s.Memory
	ratio, limit := "-", ""
	if r.HitRatio != nil {
		ratio = percent(*r.HitRatio)
	}
	if m.Limit > 0 {
		limit = " of " + size(m.Limit)
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "watchproxy %s, up %s, in front of %s\n\n", s.Version, age(s.UptimeSeconds), s.Upstream)
	fmt.Fprintf(w, "memory\t%s%s resident: objects %s, event logs %s, derived %s\n", size(m.Resident), limit, size(m.Objects), size(m.Log), size(m.Derived))
	fmt.Fprintf(w, "requests\t%s from the cache, %s forwarded (%s shared), %s refused\n", count(r.Cache), count(r.Forwarded), count(r.Shared), count(r.Refused))
	fmt.Fprintf(w, "hit ratio\t%s\n", ratio)
	fmt.Fprintf(w, "upstream\t%s requests: %s forwarded, %s of feeds, %s reviews\n", count(u.Total), count(u.Forwarded), count(u.Feeds), count(u.Reviews))
	fmt.Fprintf(w, "saved\t%s of responses (feeds read %s), %s requests\n", size(u.SavedBytes), size(u.FeedBytes), count(u.Saved))
	fmt.Fprintf(w, "watches\t%s\n", count(s.Watches))
	for _, f := range s.UnfoundFields {
		fmt.Fprintf(w, "\t%s of view %s: no such field in a sample of %s\n", f.Field, f.View, strings.Join(f.Resources, ", "))
	}
	fmt.Fprintln(w)
	s.writeFeeds(w)
	const most = 20
	for i, f := range s.Forwarded[:min(most, len(s.Forwarded))] {
		if i == 0 {
			fmt.Fprintln(w, "\nFORWARDED, LAST 5 MIN\tVERB\tREASON\tREQUESTS")
		}
		name := cmp.Or(strings.Trim(f.Resource+"."+f.Version+"."+f.Group, "."), "others")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, f.Verb, f.Reason, count(f.Count))
	}
	return w.Flush()
}

func (s *Status) writeFeeds(w io.Writer) {
	if len(s.Feeds) == 0 {
		fmt.Fprintln(w, "no feeds: the first request for a resource starts one")
		return
	}
	fmt.Fprintln(w, "RESOURCE\tENCODING\tSTATE\tOBJECTS\tSIZE\tLOG\tRESOURCEVERSION\tAGE\tWATCHES\tEVENTS\tDELIVERED")
	for _, f := range s.Feeds {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", f.name(), f.Encoding, f.state(), count(f.Objects), size(f.ObjectBytes),
			count(f.LogEvents), f.ResourceVersion, age(f.LastSignSeconds), count(f.Watches), count(f.Events), count(f.Delivered))
	}
}

// percent formats a ratio. It rounds down like the status page, so 100.0 % means all.
func percent(ratio float64) string {
	const perMille = 1000
	return fmt.Sprintf("%.1f %%", math.Floor(ratio*perMille)/10)
}

// name returns a feed's resource in kubectl's notation with its version.
func (f *feedStatus) name() string {
	name := strings.TrimSuffix(f.Resource+"."+f.Version+"."+f.Group, ".")
	if f.Scope != "" {
		name += " in " + f.Scope
	}
	return name
}

func (f *feedStatus) state() string {
	switch {
	case f.Failing:
		return "lost " + age(f.LostSeconds)
	case !f.Synced:
		return "syncing"
	}
	return "synced"
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

// count writes a number with commas between thousands.
func count[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

func age(seconds float64) string {
	return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
}
