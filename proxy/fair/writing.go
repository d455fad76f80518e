package fair

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"sync"
	"time"
)

// WriteSize is the size of one write of a long body, in bytes: four TLS records.
const WriteSize = 64 << 10

// turning waits for a turn before it writes a piece of a long body. Pieces share a turn for
// writeTime at most, because a client might not read.
type turning struct {
	io.Writer
	turns *Meter
	waits bool // the body may wait between its pieces, so that they share no turns
}

// InTurns returns a writer that waits for a turn for each piece.
func InTurns(w io.Writer, turns *Meter) io.Writer { return &turning{w, turns, true} }

func (t *turning) Write(p []byte) (n int, err error) {
	for piece := range slices.Chunk(p, WriteSize) {
		if err = t.turns.Spend(int64(len(piece))); err != nil {
			return n, err
		}
		if t.turns != nil {
			t.turns.held.expire()
		}
		m, err := t.Writer.Write(piece)
		if t.waits {
			t.turns.ReleaseSlot()
		}
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// paced fails if a client has read less than listPace on average after listGrace, because a list
// keeps its objects and pages in memory, and a shared response its bytes. Kube-apiserver ends every
// response except a watch after a minute. Only time in writes counts, not the waits for turns.
type paced struct {
	io.Writer
	stays   Stayer // see List.Write
	took    time.Duration
	written int64
}

// Paced returns a writer that fails if its client reads too slowly for what its body keeps.
func Paced(w io.Writer) io.Writer { return &paced{Writer: w} }

const (
	listGrace = time.Minute
	listPace  = 64 << 10 // bytes a second
)

// ErrSlowList says that a client was disconnected because it reads a list too slowly.
var ErrSlowList = errors.New("the client reads a list too slowly")

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

// List is a long body that is written in turns, once.
type List struct {
	Content io.WriterTo
	Length  int64  // -1 if it is unknown
	Turns   *Meter // nil if it waits for no turns
	State   Stayer // what Content is written from; nil if that always stays

	paced   paced
	turning turning
}

// Abandon implements exchange.ResponseBody.
func (*List) Abandon() {}

// Stayer is the state of a list. Stays reports whether it would be in memory without the list.
type Stayer interface{ Stays() bool }

var largeBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, WriteSize) }}

// Write writes the list in large pieces, because each write costs a system call and one or more TLS
// records. large is true if the request holds a LargeBuffer. After listGrace, the body ends once
// its state does not stay. Write returns the number of bytes that w took: a body that is compressed
// meanwhile counts others.
func (l *List) Write(w io.Writer, large bool) (int64, error) {
	var buffer *bufio.Writer
	if large {
		buffer = largeBuffers.Get().(*bufio.Writer)
		defer largeBuffers.Put(buffer)
		defer buffer.Reset(nil) // otherwise the pool would keep the connection
	} else { // the response takes more writes
		buffer = bufio.NewWriterSize(nil, smallSize)
	}
	l.paced = paced{Writer: w, stays: l.State}
	l.turning = turning{&l.paced, l.Turns, false}
	defer l.Turns.ReleaseSlot()
	buffer.Reset(&l.turning)
	_, err := l.Content.WriteTo(buffer)
	if err == nil {
		err = buffer.Flush()
	}
	return l.paced.written, err
}
