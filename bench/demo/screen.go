package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// If the output is a pipe, header precedes the lines, and again every headerEvery lines.
	header = "        WATCHES    EVENTS/S     REQUESTS          DELIVERY             CACHE     WATCHPROXY        APISERVER\n" +
		"  TIME   IN  OUT    IN     OUT   IN   OUT      P50       P99                    RSS    CPU       RSS    CPU"
	headerEvery = 20

	progressEvery = 100 * time.Millisecond // on a terminal
	progressPiped = 2 * time.Second
)

// screen is standard output. On a terminal the figures are drawn in place; elsewhere each second
// adds a line.
type screen struct {
	out      *os.File
	terminal bool
	options  options
	lines    int // drawn lines of figures: to overwrite on a terminal, or to count

	mu struct {
		sync.Mutex
		progressed time.Time // when progress was last shown
		open       bool      // progress was shown and its line has not ended
	}
}

func newScreen(out *os.File) *screen {
	stat, err := out.Stat()
	terminal := err == nil && stat.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &screen{out: out, terminal: terminal}
}

// say adds a line.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endProgressLocked()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// progress shows how much of something is done.
func (s *screen) progress(what string, done, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	every, before, after := progressPiped, "", "\n"
	if s.terminal {
		every, before, after = progressEvery, "\r\x1b[K", ""
	}
	if done < all && time.Since(s.mu.progressed) < every {
		return
	}
	s.mu.progressed, s.mu.open = time.Now(), s.terminal
	fmt.Fprintf(s.out, "%s%s: %s of %s%s", before, what, count(done), count(all), after)
	if done == all {
		s.endProgressLocked()
	}
}

func (s *screen) endProgressLocked() {
	if s.mu.open {
		fmt.Fprintln(s.out)
	}
	s.mu.progressed, s.mu.open = time.Time{}, false
}

// begin precedes the figures.
func (s *screen) begin(o options) {
	s.options, s.lines = o, 0
	s.say("")
}

// show shows the figures of a second.
func (s *screen) show(f figures, passed time.Duration) {
	if s.terminal {
		s.draw(block(f, passed, s.options))
		return
	}
	if s.lines%headerEvery == 0 {
		s.say(header)
	}
	s.lines++
	s.say("%s", line(f, passed))
}

// draw replaces the block drawn before. It cuts lines that are too long for the terminal: a wrapped
// line would count as two when the cursor goes back.
func (s *screen) draw(block []string) {
	var b strings.Builder
	b.WriteString("\x1b[?7l")
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	for _, l := range block {
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[?7h")
	s.lines = len(block)
	fmt.Fprint(s.out, b.String())
}

// end shows the figures of the whole time.
func (s *screen) end(f figures) {
	s.say("\nin %v: %s watches at watchproxy, %s at kube-apiserver, delivery p50 %s p99 %s", s.options.measured,
		count(f.watchesDown), count(f.watchesUp), quantile(f.delivery, .5), quantile(f.delivery, .99))
}

// compare shows what informers cost without the proxy and with it.
func (s *screen) compare(without, with bill) {
	if without == (bill{}) {
		return
	}
	s.say("\n%-46s %12s %18s", "", "directly", "through watchproxy")
	for _, part := range []struct {
		name          string
		without, with cost
	}{
		{fmt.Sprintf("start of %s informers", count(s.options.informers)), without.start, with.start},
		{fmt.Sprintf("a second with %d updates", s.options.rate), without.running.rate(), with.running.rate()},
	} {
		s.say("%s", part.name)
		for _, row := range []struct {
			name          string
			without, with float64
			unit          string
		}{
			{"kube-apiserver, processor time", 1000 * part.without.cpu, 1000 * part.with.cpu, " ms"},
			{"watchproxy, processor time", 1000 * part.without.proxyCPU, 1000 * part.with.proxyCPU, " ms"},
			{"kube-apiserver, bytes sent (uncompressed)", part.without.bytes / 1e3, part.with.bytes / 1e3, " kB"},
			{"kube-apiserver, requests except writes", part.without.requests, part.with.requests, ""},
		} {
			s.say("  %-44s %12s %18s", row.name, count(row.without)+row.unit, count(row.with)+row.unit)
		}
	}
}

// line is one row under header.
func line(f figures, passed time.Duration) string {
	return fmt.Sprintf("%6s %4s %4s %5.0f %7s %4s %5s %8s %9s %9s %9s %6s %9s %6s",
		passed.Round(time.Second),
		count(f.watchesUp), count(f.watchesDown),
		f.eventsUpRate, count(f.eventsDownRate),
		count(f.requestsUp), count(f.requestsDown),
		quantile(f.delivery, .5), quantile(f.delivery, .99),
		megabytes(f.bytes),
		megabytes(f.proxy.memory), percent(f.proxyCPU),
		megabytes(f.api.memory), percent(f.apiCPU))
}

// block is one screenful.
func block(f figures, passed time.Duration, o options) []string {
	lines := []string{
		fmt.Sprintf("watchproxy · %s pods · %s informers · %d updates/s · %v", count(o.pods), count(o.informers), o.rate, passed.Round(time.Second)),
		"",
		fmt.Sprintf("%-14s %14s %14s", "", "from upstream", "to informers"),
		fmt.Sprintf("%-14s %14s %14s", "watches", count(f.watchesUp), count(f.watchesDown)),
		fmt.Sprintf("%-14s %14.0f %14s", "events/s", f.eventsUpRate, count(f.eventsDownRate)),
		fmt.Sprintf("%-14s %14s %14s   %s answered from the cache", "requests",
			count(f.requestsUp), count(f.requestsDown), count(f.cached)),
		"",
		fmt.Sprintf("%-14s %14s %14s", "", "p50", "p99"),
		fmt.Sprintf("%-14s %14s %14s   update sent → apiserver's answer", "write", quantile(f.ack, .5), quantile(f.ack, .99)),
		fmt.Sprintf("%-14s %14s %14s   update sent → informer's handler", "delivery", quantile(f.delivery, .5), quantile(f.delivery, .99)),
		"",
		fmt.Sprintf("%-14s %14s %14s", "", "memory", "CPU"),
		fmt.Sprintf("%-14s %14s %14s   %s pods cached, %s", "watchproxy", megabytes(f.proxy.memory), percent(f.proxyCPU), count(f.objects), megabytes(f.bytes)),
		fmt.Sprintf("%-14s %14s %14s", "apiserver", megabytes(f.api.memory), percent(f.apiCPU)),
		"",
		fmt.Sprintf("%-14s %14s of %s handler calls due", "delivered", count(min(f.delivered, f.due)), count(f.due)),
	}
	if f.failures > 0 {
		lines = append(lines, fmt.Sprintf("%-14s %14s lists and watches of informers failed", "", count(f.failures)))
	}
	return lines
}
