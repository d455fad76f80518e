package conn

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// gathering lets the reads of a socket bring more bytes. A client that decodes while it reads
// returns its HTTP/2 window in thousands of small frames. If each of them woke the reader, or only
// a thread that waits for all sockets, this would cost more than the response.
type gathering struct {
	began time.Time
	until atomic.Int64 // nanoseconds since began

	// The rest belongs to the goroutine that reads.
	wakeAt int              // the number of bytes whose arrival wakes the reader; 0 means 1
	pause  time.Duration    // how long the next read waits; 0 means GatherTime
	more   bool             // the last read filled the buffer
	buf    *[gatherMax]byte // nil if kept is empty
	kept   []byte           // bytes of buf that were read but not yet passed on
}

const (
	// GatherTime and gatherLeast limit how long a read waits for more bytes: about as long as the
	// client takes to send gatherWorth bytes, so that a client that reads quickly does not run dry.
	GatherTime, gatherLeast = 4 * time.Millisecond, time.Millisecond
	gatherWorth             = 2 << 10
	// gatherMax is the maximum number of bytes that are read together.
	gatherMax = 16 << 10
)

var gatherings = sync.Pool{New: func() any { return new([gatherMax]byte) }}

func (g *gathering) start(d time.Duration) { g.until.Store(int64(time.Since(g.began) + d)) }

func (g *gathering) active() bool {
	until := g.until.Load()
	return until != 0 && int64(time.Since(g.began)) < until
}

// read waits for a moment and reads what has arrived. If that is nothing, it waits for one byte.
func (g *gathering) read(s *socket, p []byte) (int, error) {
	if g.pause = cmp.Or(g.pause, GatherTime); !g.more {
		g.wake(s, gatherMax)
		time.Sleep(g.pause)
	}
	g.buf = gatherings.Get().(*[gatherMax]byte)
	n, err := s.now.ReadNow(g.buf[:])
	g.more, g.kept = n == gatherMax, g.buf[:n]
	g.pause = max(gatherLeast, min(GatherTime, g.pause*gatherWorth/time.Duration(max(1, n))))
	switch n = g.take(p); {
	case errors.Is(err, syscall.EAGAIN):
		g.wake(s, 1)
		return s.Conn.Read(p)
	default:
		return n, err
	}
}

func (g *gathering) take(p []byte) int {
	n := copy(p, g.kept)
	if g.kept = g.kept[n:]; len(g.kept) == 0 {
		gatherings.Put(g.buf)
		g.buf, g.kept = nil, nil
	}
	return n
}

func (g *gathering) wake(s *socket, bytes int) {
	if s.now != nil && max(1, g.wakeAt) != bytes {
		g.wakeAt = bytes
		s.now.WakeAt(bytes)
	}
}
