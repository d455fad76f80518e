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
}

// InTurns returns a writer that waits for a turn before each piece except the first.
func InTurns(w io.Writer, turns *Meter) io.Writer { return &turning{Writer: w, turns: turns} }

// Write implements io.Writer. A short body does not wait.
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

// paced fails if a client has read less than listPace on average after listGrace, because a list
// keeps its objects and pages in memory. For comparison, kube-apiserver ends every response except
// a watch after a minute. Only the time in writes counts, without the waits for turns.
type paced struct {
	io.Writer
	room    *Room // memory that other users may need, or nil
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
	if slow || p.room != nil && p.room.late(p.written, p.took) {
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

// WriteLong writes a body in large pieces, because each write costs a system call and one or more
// TLS records. length is -1 if it is unknown. If turns is nil, WriteLong does not wait for turns.
// room is the memory that the body holds, or nil.
func WriteLong(w io.Writer, body io.WriterTo, length int64, turns *Meter, room *Room) (int64, error) {
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
	large.Reset(nil)
	lw.paced, lw.turning = paced{}, turning{}
	listWriters.Put(lw)
	return n, err
}
