package watch

import (
	"bytes"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// framesMax is the number of encoded events that a goroutine keeps for further watches. One event
// may need several: watches have different forms, and the event may be ADDED for one selector and
// DELETED for another.
const framesMax = 4

// Scratch is space that is needed only during a turn. Each working goroutine has one. A pump's
// scratch space holds up to framesMax pieces of 64 KiB.
type Scratch struct {
	deltas [deltasMax]watchcache.Delta
	frames [framesMax]frame // the last events, for other watches of the same form
	next   int              // frame to be replaced
}

// frame is an event as a chunk.
type frame struct {
	choice   wire.Choice
	delta    watchcache.Delta
	unframed bool
	chunk    bytes.Buffer
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// NewScratch returns scratch space. The caller must call Free.
func NewScratch() *Scratch { return scratches.Get().(*Scratch) }

// Free drops the references to objects and gives the space back.
func (s *Scratch) Free() {
	for i := range s.frames {
		s.frames[i].delta = watchcache.Delta{}
	}
	scratches.Put(s)
}

// writeOne writes a single event, from a frame if there is one. The writer must not retain the
// bytes that it is given.
func (w *Watch) writeOne(out *exchange.ChunkWriter, d *watchcache.Delta, s *Scratch) error {
	for i := range s.frames {
		f := &s.frames[i]
		if f.delta == *d && f.choice == w.Choice && f.unframed == out.Unframed {
			return out.Send(f.chunk.Bytes())
		}
	}
	if err := w.append(out, d); err != nil {
		return err
	}
	chunk := out.Chunk()
	if len(chunk) <= exchange.PieceSize {
		f := &s.frames[s.next]
		s.next = (s.next + 1) % framesMax
		f.choice, f.delta, f.unframed = w.Choice, *d, out.Unframed
		f.chunk.Reset()
		f.chunk.Write(chunk)
	}
	return out.Write(chunk)
}
