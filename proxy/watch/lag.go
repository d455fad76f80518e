package watch

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Lag counts the delivery lags of one resource's events. A lag is the time from the arrival of an
// event from upstream until its bytes are written to a client's connection. At that time, the bytes
// are in the kernel or in the connection's own buffer.
//
// An event counts only if it arrives after an open watch has written its initial state. A client
// that resumes from an older resourceVersion receives old events, which are not late.
//
// Measuring must cost almost nothing. A pump's goroutine collects the arrival times of the events
// that it writes, and reads the clock once for a batch of connections. Events of one commit have
// one arrival time, so a batch usually needs two additions to shared counters. A measured lag is
// too long by at most the duration of its batch: up to 16 writes that do not block.
//
// A client that does not read delays its own deliveries. Deliveries that had to wait for the client
// count as Slow, and all others as Prompt.
type Lag struct {
	Prompt, Slow LagCounts
	// Written to watches, including initial states; each scrape takes them.
	Bytes atomic.Uint64
}

// LagBuckets are the upper bounds of the buckets of [LagCounts], in seconds.
var LagBuckets = [...]float64{
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
}

// LagCounts is a histogram of lags.
type LagCounts struct {
	buckets [len(LagBuckets) + 1]atomic.Uint64
	nanos   atomic.Int64
}

// Totals returns the number of deliveries, the sum of their lags in seconds, and the number of
// deliveries within each bound of LagBuckets.
func (c *LagCounts) Totals() (count uint64, seconds float64, within map[float64]uint64) {
	within = make(map[float64]uint64, len(LagBuckets))
	for i, bound := range LagBuckets {
		count += c.buckets[i].Load()
		within[bound] = count
	}
	count += c.buckets[len(LagBuckets)].Load()
	return count, time.Duration(c.nanos.Load()).Seconds(), within
}

func (c *LagCounts) add(lag time.Duration, n uint64) {
	lag = max(0, lag)
	i, seconds := 0, lag.Seconds()
	for i < len(LagBuckets) && seconds > LagBuckets[i] {
		i++
	}
	c.buckets[i].Add(n)
	c.nanos.Add(int64(lag) * int64(n)) //nolint:gosec // n is small
}

type lags struct {
	of     *Lag
	opened int64  // the moment after which lags count
	sent   uint64 // bytes that are counted
	slow   bool   // events have waited for the client to read
}

// note collects the arrival times of events that are about to be written.
func (l *lags) note(late *lateRuns, polled []watchcache.Delta) {
	to := &l.of.Prompt
	if l.slow {
		to = &l.of.Slow
	}
	late.add(to, polled, l.opened)
}

func (l *lags) takeSent(out *exchange.ChunkWriter) uint64 {
	n := out.Sent - l.sent
	l.sent = out.Sent
	return n
}

// countWaited counts the deliveries of a step whose writes took so long.
func (l *lags) countWaited(late *lateRuns, took time.Duration) {
	if late.n == 0 {
		return
	}
	if !l.slow && took >= slowWrites {
		l.slow = true
		for i := range late.n {
			late.runs[i].to = &l.of.Slow
		}
	}
	late.countAt(time.Now())
}

// slowWrites is the minimum duration of a step's writes that counts as waiting for the client.
const slowWrites = 100 * time.Millisecond

// waits measures the writes of a step, but not the rest of the step, in which a Table may wait for
// its rows.
type waits struct {
	to   io.Writer
	took time.Duration
}

func (w *waits) Write(p []byte) (int, error) {
	began := time.Now()
	n, err := w.to.Write(p)
	w.took += time.Since(began)
	return n, err
}

// lateRuns are deliveries whose lag has not been counted yet.
type lateRuns struct {
	n     int
	runs  [lateRunsMax]lateRun
	of    *Lag // the resource of the watches to which bytes were sent
	bytes uint64
}

// lateRunsMax limits the runs in a batch. With more, the clock is read before the batch ends.
const lateRunsMax = 16

type lateRun struct {
	to       *LagCounts
	received int64 // as a moment
	events   uint64
}

// add collects the events that arrived after the moment since.
func (l *lateRuns) add(to *LagCounts, events []watchcache.Delta, since int64) {
	for i := range events {
		received := events[i].Received
		if received < since {
			continue
		}
		if l.n > 0 {
			if last := &l.runs[l.n-1]; last.received == received && last.to == to {
				last.events++
				continue
			}
		}
		if l.n == len(l.runs) {
			l.count()
		}
		l.runs[l.n] = lateRun{to, received, 1}
		l.n++
	}
}

func (l *lateRuns) sent(of *Lag, n uint64) {
	if l.of != of {
		l.countBytes()
		l.of = of
	}
	l.bytes += n
}

func (l *lateRuns) countBytes() {
	if l.bytes > 0 {
		l.of.Bytes.Add(l.bytes)
	}
	l.of, l.bytes = nil, 0
}

func (l *lateRuns) count() {
	l.countBytes()
	if l.n > 0 {
		l.countAt(time.Now())
	}
}

// countAt counts the collected deliveries. Their bytes were written at the time now.
func (l *lateRuns) countAt(now time.Time) {
	at := watchcache.Moment(now)
	for i := range l.n {
		run := &l.runs[i]
		run.to.add(time.Duration(at-run.received), run.events)
		run.to = nil
	}
	l.n = 0
}
