package proxy

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

// oneOff is a list that is indented or compressed for one request, while it is written: it takes
// the memory of a piece or a compressor, however long it is. The turns that this takes are the
// read's.
type oneOff struct {
	list    *listBody
	meter   *meter
	indents bool
	// compressor is room for one; nil if the list is not compressed.
	compressor *room
}

// WriteTo implements io.WriterTo.
func (o *oneOff) WriteTo(w io.Writer) (n int64, err error) {
	defer o.meter.rest()
	counted := &turnWriter{to: w, meter: o.meter}
	if o.compressor != nil {
		counted.cost += gzipCost
		body, done := wire.GzipTo(w)
		defer func() {
			err = errors.Join(err, done(err == nil))
			o.compressor.giveBack()
		}()
		counted.to = body
	}
	if !o.indents {
		return o.list.WriteTo(counted)
	}
	counted.cost += indentCost
	indenter := wire.NewIndenter(counted.to)
	counted.to = indenter
	if n, err = o.list.WriteTo(counted); err == nil {
		err = indenter.Flush()
	}
	return n, err
}

// turnWriter has others take turns before each object that is written.
type turnWriter struct {
	to    io.Writer
	meter *meter
	cost  int64 // of a byte
}

// Write implements io.Writer. A large object is more than a turn.
func (m *turnWriter) Write(p []byte) (n int, err error) {
	const most = 32 << 10
	for piece := range slices.Chunk(p, most) {
		if err := m.meter.spend(m.cost * int64(len(piece))); err != nil {
			return n, err
		}
		wrote, err := m.to.Write(piece)
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// listStream is a list as fasthttp writes it.
type listStream struct{ *response }

// Read implements io.Reader.
func (listStream) Read([]byte) (int, error) { panic("BUG: a list is written, not read") }

// WriteTo implements io.WriterTo.
func (l listStream) WriteTo(w io.Writer) (int64, error) { return l.writeList(w) }

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (listStream) SupportsBodyWriteTo() bool { return true }

// Close implements io.Closer.
func (l listStream) Close() error {
	l.closeList()
	return nil
}

// closeList is called when a list was written, or never will be.
func (r *response) closeList() {
	if r.room != nil {
		r.room.giveBack()
	}
}

// writeSize is that of four TLS records.
const writeSize = 64 << 10

var listWriters = sync.Pool{New: func() any { return &listWriter{large: bufio.NewWriterSize(nil, writeSize)} }}

type listWriter struct {
	large   *bufio.Writer
	paced   paced
	turning turning
}

// writeList writes a list in large pieces: each is a system call, a TLS record or more, and over
// HTTP/2 a message to another goroutine.
func (r *response) writeList(w io.Writer) (int64, error) {
	lw := listWriters.Get().(*listWriter)
	lw.paced = paced{Writer: w, room: r.room}
	w = &lw.paced
	if r.turns != nil {
		lw.turning = turning{Writer: w, turns: r.turns, begun: r.length > writeSize}
		w = &lw.turning
	}
	large := lw.large
	large.Reset(w)
	n, err := r.list.WriteTo(large)
	if err == nil {
		err = large.Flush()
	}
	if err != nil {
		return n, err // HTTP/2 may still hold the buffer
	}
	large.Reset(nil)
	lw.paced, lw.turning = paced{}, turning{}
	listWriters.Put(lw)
	return n, nil
}

// paced ends the writing of a list to a client that reads less than listPace on average. A list
// keeps the objects and pages alive that it shows. Kube-apiserver ends every answer but a watch
// after a minute. Only the writes count, not what the list waits for here.
type paced struct {
	io.Writer
	room    *room // which others may want; nil for none
	took    time.Duration
	written int64
}

const (
	listGrace = time.Minute
	listPace  = 64 << 10 // bytes a second
)

var errSlowList = errors.New("the client reads a list too slowly")

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	if p.took > listGrace+time.Duration(p.written)*time.Second/listPace || p.room != nil && p.room.late(p.written, p.took) {
		return 0, errSlowList
	}
	began := time.Now()
	n, err := p.Writer.Write(b)
	p.took += time.Since(began)
	p.written += int64(n)
	return n, err
}

// turning has others take turns between the pieces of a long body.
type turning struct {
	io.Writer
	turns writing
	begun bool // so much was written that it is a long body
}

// writing has others take turns before size bytes are written. End is called when they are.
type writing interface {
	write(size int) (end func(), err error)
}

// Write implements io.Writer. A short body waits for nobody.
func (t *turning) Write(p []byte) (int, error) {
	size := 0
	if t.begun {
		size = len(p)
	}
	end, err := t.turns.write(size)
	if err != nil {
		return 0, err
	}
	defer end()
	t.begun = true
	return t.Writer.Write(p)
}
