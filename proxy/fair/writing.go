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
	room    *Room  // memory that other users may need, or nil
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
	if slow || p.took > listGrace && p.stays != nil && !p.stays.Stays() || p.room != nil && p.room.late(p.written, p.took) {
		return 0, ErrSlowList
	}
	began := time.Now()
	n, err := p.Writer.Write(b)
	p.took += time.Since(began)
	p.written += int64(n)
	return n, err
}

const (
	// LargeMost limits the large buffers of long bodies in the process. Users share them. What TLS makes
	// of a buffer takes as much again, while the client keeps a write waiting.
	LargeMost = 512
	// smallSize is the size of a buffer beyond this limit, in bytes.
	smallSize = 4 << 10
)

// large has the large buffers of long bodies. A client that does not read its response keeps a buffer.
var large = NewPool(LargeMost, true, 0)

// TakeLarge takes one of a user's large buffers, if one is free. GiveLarge gives it back.
func TakeLarge(user string) (ok bool) { return large.Try(Claim{User: user, Size: 1}) }

// GiveLarge gives a user's large buffer back.
func GiveLarge(user string) { large.Give(user, 1) }

// LargeTaken returns the number of large buffers in use.
func LargeTaken() int64 { return large.Taken() }

// Stayer is the state from which a list is written. Stays reports whether the state would be in memory
// without the list.
type Stayer interface{ Stays() bool }

var listWriters = sync.Pool{New: func() any { return &listWriter{large: bufio.NewWriterSize(nil, WriteSize)} }}

type listWriter struct {
	large   *bufio.Writer
	paced   paced
	turning turning
}

// WriteLong writes a body in large pieces, because each write costs a system call and one or more
// TLS records. length is -1 if it is unknown. If turns is nil, WriteLong does not wait for turns.
// room is the memory that the body holds, or nil. After listGrace, the body ends once its state does
// not stay; nil means never. WriteLong returns the number of bytes that w took: a body that is
// compressed meanwhile counts others.
func WriteLong(w io.Writer, body io.WriterTo, length int64, turns *Meter, room *Room, stays Stayer) (int64, error) {
	user := ""
	if turns != nil && turns.who != nil {
		user = turns.who.User()
	}
	var lw *listWriter
	if TakeLarge(user) {
		defer GiveLarge(user)
		lw = listWriters.Get().(*listWriter)
		defer listWriters.Put(lw)
	} else { // the response takes more writes
		lw = &listWriter{large: bufio.NewWriterSize(nil, smallSize)}
	}
	lw.paced = paced{Writer: w, room: room, stays: stays}
	w = &lw.paced
	if turns != nil {
		lw.turning = turning{Writer: w, turns: turns, begun: length > WriteSize, rest: length}
		w = &lw.turning
		defer lw.turning.end()
	}
	large := lw.large
	large.Reset(w)
	_, err := body.WriteTo(large)
	if err == nil {
		err = large.Flush()
	}
	large.Reset(nil)
	lw.turning.end()
	n := lw.paced.written
	lw.paced, lw.turning = paced{}, turning{}
	return n, err
}
