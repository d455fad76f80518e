package fair

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"time"
)

// WriteSize is how many bytes of a body are written at a time: four TLS records.
const WriteSize = 64 << 10

// Turns has others take turns before size bytes are written. End is called when they are.
type Turns interface {
	write(size int) (end func(), err error)
}

// turning has others take turns between the pieces of a long body.
type turning struct {
	io.Writer
	turns Turns
	begun bool // so much was written that it is a long body
}

// InTurns returns a writer that waits for a turn before each piece but the first.
func InTurns(w io.Writer, turns Turns) io.Writer { return &turning{Writer: w, turns: turns} }

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

// paced ends the writing of a list to a client that reads less than listPace on average. A list
// keeps the objects and pages alive that it shows. Kube-apiserver ends every answer but a watch
// after a minute. Only the writes count, not what the list waits for here.
type paced struct {
	io.Writer
	room    *Room // which others may want; nil for none
	took    time.Duration
	written int64
}

const (
	listGrace = time.Minute
	listPace  = 64 << 10 // bytes a second
)

// ErrSlowList says that a client was cut because it reads a list too slowly.
var ErrSlowList = errors.New("the client reads a list too slowly")

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	if p.took > listGrace+time.Duration(p.written)*time.Second/listPace || p.room != nil && p.room.late(p.written, p.took) {
		return 0, ErrSlowList
	}
	began := time.Now()
	n, err := p.Writer.Write(b)
	p.took += time.Since(began)
	p.written += int64(n)
	return n, err
}

var listWriters = sync.Pool{New: func() any { return &listWriter{large: bufio.NewWriterSize(nil, WriteSize)} }}

type listWriter struct {
	large   *bufio.Writer
	paced   paced
	turning turning
}

// WriteLong writes a body of length bytes, or -1 until it ends, in large pieces: each is a system
// call, a TLS record or more, and over HTTP/2 a message to another goroutine. Without turns it waits
// for none; the room is what the body takes, or nil.
func WriteLong(w io.Writer, body io.WriterTo, length int64, turns Turns, room *Room) (int64, error) {
	lw := listWriters.Get().(*listWriter)
	lw.paced = paced{Writer: w, room: room}
	w = &lw.paced
	if turns != nil {
		lw.turning = turning{Writer: w, turns: turns, begun: length > WriteSize}
		w = &lw.turning
	}
	large := lw.large
	large.Reset(w)
	n, err := body.WriteTo(large)
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
