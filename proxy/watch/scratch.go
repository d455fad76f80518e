package watch

import (
	"bytes"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// encodedMax is the number of encoded events that a goroutine keeps for further watches. One event
// may have several encodings: watches have different forms, and the event may be ADDED for one
// selector and DELETED for another.
const encodedMax = 4

// Scratch is memory that is needed only during a step. Each working goroutine has its own. A pump's
// scratch space holds up to encodedMax pieces of 64 KiB.
type Scratch struct {
	deltas [deltasMax]watchcache.Delta
	events [encodedMax]encoded // the latest events, for other watches of the same form
	next   int                 // index of the next of events to replace
	late   lateRuns
}

// encoded is an event as HTTP/2 sends it.
type encoded struct {
	choice wire.Choice
	delta  watchcache.Delta
	bytes  bytes.Buffer
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// NewScratch returns scratch space. The caller must call Free.
func NewScratch() *Scratch { return scratches.Get().(*Scratch) }

// Written counts the lags of the steps so far. It must be called soon after their bytes were
// written.
func (s *Scratch) Written() { s.late.count() }

// Free drops the references to objects and returns the space to the pool.
func (s *Scratch) Free() {
	s.Written()
	for i := range s.events {
		s.events[i].delta = watchcache.Delta{}
	}
	scratches.Put(s)
}

// writeOne writes a single event, which the goroutine may have encoded for another watch. The
// writer must not retain the slice of bytes.
func (e *encoder) writeOne(out *exchange.ChunkWriter, d *watchcache.Delta, s *Scratch) error {
	for i := range s.events {
		known := &s.events[i]
		if known.delta == *d && known.choice == e.plan.Choice {
			return out.Send(known.bytes.Bytes())
		}
	}
	// An event may become longer than a piece.
	if err := e.append(out, d); err != nil || out.Buf == nil {
		return err
	}
	chunk := out.Chunk()
	if len(chunk) <= exchange.PieceSize {
		known := &s.events[s.next]
		s.next = (s.next + 1) % encodedMax
		known.choice, known.delta = e.plan.Choice, *d
		known.bytes.Reset()
		known.bytes.Write(chunk)
	}
	return out.Write(chunk)
}
