package watch

import (
	"bytes"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// frames are the last events that were written, ready to be written again: those who watch
// the same thing in the same form get the same bytes.
type frames struct {
	ready [framesMax]frame
	next  int // to be replaced
}

// frame is an event as a chunk.
type frame struct {
	choice   wire.Choice
	delta    watchcache.Delta
	unframed bool
	chunk    bytes.Buffer
}

// framesMax is for how many forms, and kinds of a change, a frame is kept; by one
// selector an event may be ADDED, by another DELETED.
const framesMax = 4

// writeOne writes an event that is not held up by others, to somebody who holds on to none
// of what is written.
func (w *Watch) writeOne(out *exchange.ChunkWriter, d *watchcache.Delta, all *frames) error {
	for i := range all.ready {
		f := &all.ready[i]
		if f.delta == *d && f.choice == w.Choice && f.unframed == out.Unframed {
			return out.Send(f.chunk.Bytes())
		}
	}
	if err := w.append(out, d); err != nil {
		return err
	}
	chunk := out.Chunk()
	if len(chunk) <= exchange.PieceSize {
		f := &all.ready[all.next]
		all.next = (all.next + 1) % framesMax
		f.choice, f.delta, f.unframed = w.Choice, *d, out.Unframed
		f.chunk.Reset()
		f.chunk.Write(chunk)
	}
	return out.Write(chunk)
}

// forget lets go of objects.
func (all *frames) forget() {
	for i := range all.ready {
		all.ready[i].delta = watchcache.Delta{}
	}
}

// Scratch is what a turn needs, and has no use for afterwards. There are as many as there are
// goroutines at work at a time, and those of a pump keep framesMax pieces.
type Scratch struct {
	deltas [deltasMax]watchcache.Delta
	frames frames
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// NewScratch returns scratch space. It has to be freed.
func NewScratch() *Scratch { return scratches.Get().(*Scratch) }

// Free gives the space back. It holds no objects from then on.
func (s *Scratch) Free() {
	s.frames.forget()
	scratches.Put(s)
}
