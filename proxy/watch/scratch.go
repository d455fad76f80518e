package watch

import (
	"bytes"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// framesMax is the number of encoded events that a goroutine keeps for further watches. One event
// may need several frames: watches have different forms, and the event may be ADDED for one
// selector and DELETED for another.
const framesMax = 4

// Scratch is memory that is needed only during a step. Each working goroutine has its own. A pump's
// scratch space holds up to framesMax pieces of 64 KiB.
type Scratch struct {
	deltas [deltasMax]watchcache.Delta
	frames [framesMax]frame // the latest events, for other watches of the same form
	next   int              // index of the next frame to replace
	late   lateRuns
}

// frame is an event as HTTP/2 sends it.
type frame struct {
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
	for i := range s.frames {
		s.frames[i].delta = watchcache.Delta{}
	}
	scratches.Put(s)
}

// writeOne writes a single event, from a frame if the event has one. The writer must not retain the
// slice of bytes.
func (w *Watch) writeOne(out *exchange.ChunkWriter, d *watchcache.Delta, s *Scratch) error {
	for i := range s.frames {
		f := &s.frames[i]
		if f.delta == *d && f.choice == w.Choice {
			return out.Send(f.bytes.Bytes())
		}
	}
	if err := w.append(out, d); err != nil || out.Buf == nil { // an event may become longer than a piece
		return err
	}
	chunk := out.Chunk()
	if len(chunk) <= exchange.PieceSize {
		f := &s.frames[s.next]
		s.next = (s.next + 1) % framesMax
		f.choice, f.delta = w.Choice, *d
		f.bytes.Reset()
		f.bytes.Write(chunk)
	}
	return out.Write(chunk)
}
