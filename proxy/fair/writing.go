package fair

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"time"
)

// WriteSize is the size of one write of a long body, in bytes: four TLS records.
const WriteSize = 64 << 10

// turning waits for a turn before each piece of a long body.
type turning struct {
	io.Writer
	turns *Meter
	begun bool // a piece was written, or the body is known to be long
	// rest is the length of the unwritten rest of a body that only copies, or 0. Several pieces of
	// such a body share a turn. Any other body may wait between its pieces.
	rest int64
	turn *writeTurn // the shared turn, or nil
}

// InTurns returns a writer that waits for a turn before each piece except the first.
func InTurns(w io.Writer, turns *Meter) io.Writer { return &turning{Writer: w, turns: turns} }

// Write implements io.Writer. A short body does not wait.
func (t *turning) Write(p []byte) (int, error) {
	size := 0
	if t.begun {
		size = len(p)
	}
	if !t.turn.goesOn(size) {
		t.end()
		turn, err := t.turns.write(size, t.rest)
		if err != nil {
			return 0, err
		}
		t.turn = turn
	}
	t.rest -= int64(len(p))
	t.begun = true
	n, err := t.Writer.Write(p)
	if t.turn.rests(); t.rest <= 0 || err != nil {
		t.end()
	}
	return n, err
}

// end ends the shared turn.
func (t *turning) end() {
	t.turn.end()
	t.turn = nil
}

// paced fails if a client has read less than listPace on average after listGrace, because a list
// keeps its objects and pages in memory. For comparison, kube-apiserver ends every response except
// a watch after a minute. Only the time in writes counts, without the waits for turns.
type paced struct {
	io.Writer
	stays   Stayer // see WriteLong
	took    time.Duration
	written int64
}

const (
	listGrace = time.Minute
	listPace  = 64 << 10 // bytes a second
)

// ErrSlowList says that a client was disconnected because it reads a list too slowly.
var ErrSlowList = errors.New("the client reads a list too slowly")

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	slow := p.took > listGrace+time.Duration(p.written)*time.Second/listPace
	if slow || p.took > listGrace && p.stays != nil && !p.stays.Stays() {
		return 0, ErrSlowList
	}
	began := time.Now()
	n, err := p.Writer.Write(b)
	p.took += time.Since(began)
	p.written += int64(n)
	return n, err
}

const (
	// LargeBuffer is the memory of a long body while it is written: a buffer, and as much again for
	// what TLS makes of it while the client keeps a write waiting.
	LargeBuffer = 2 * WriteSize
	// smallSize is the size of the buffer of a body without such memory, in bytes.
	smallSize = 4 << 10
)

// Stayer is the state from which a list is written. Stays reports whether the state would be in memory
// without the list.
type Stayer interface{ Stays() bool }

var listWriters = sync.Pool{New: func() any { return &listWriter{buffer: bufio.NewWriterSize(nil, WriteSize)} }}

type listWriter struct {
	buffer  *bufio.Writer
	paced   paced
	turning turning
}

// WriteLong writes a body in large pieces, because each write costs a system call and one or more
// TLS records. length is -1 if it is unknown. If turns is nil, WriteLong does not wait for turns.
// large is true if the request holds a LargeBuffer. After listGrace, the body ends once its state does
// not stay; nil means never. WriteLong returns the number of bytes that w took: a body that is
// compressed meanwhile counts others.
func WriteLong(w io.Writer, body io.WriterTo, length int64, turns *Meter, large bool, stays Stayer) (int64, error) {
	var lw *listWriter
	if large {
		lw = listWriters.Get().(*listWriter)
		defer listWriters.Put(lw)
	} else { // the response takes more writes
		lw = &listWriter{buffer: bufio.NewWriterSize(nil, smallSize)}
	}
	lw.paced = paced{Writer: w, stays: stays}
	w = &lw.paced
	if turns != nil {
		lw.turning = turning{Writer: w, turns: turns, begun: length > WriteSize, rest: length}
		w = &lw.turning
		defer lw.turning.end()
	}
	buffer := lw.buffer
	buffer.Reset(w)
	_, err := body.WriteTo(buffer)
	if err == nil {
		err = buffer.Flush()
	}
	buffer.Reset(nil)
	lw.turning.end()
	n := lw.paced.written
	lw.paced, lw.turning = paced{}, turning{}
	return n, err
}
