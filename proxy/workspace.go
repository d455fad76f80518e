package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// What it takes to make a body, in bytes for each byte of JSON that it is made of, at its
// highest. The YAML library has been seen to take 89.
const (
	yamlWork   = 96
	indentWork = 6
	gzipWork   = 3
	cutWork    = 2
	// compressorSize is what a compressor takes, in bytes.
	compressorSize = 1536 << 10
)

const (
	// workspaceWait is how long a read waits for others to be written: upstream can make the body as well.
	workspaceWait = 2 * time.Second
	// paceMin is how many bytes a second a client has to read of a body in the workspace, after
	// paceGrace, if somebody has waited for room in the last paceWanted.
	paceMin    = 64 << 10
	paceGrace  = 10 * time.Second
	paceWanted = 2 * time.Minute
)

// workspace bounds the memory of answers that are made for one request each, all together, until they are
// written: what clients ask for is not to decide how much memory that is.
type workspace struct {
	space  *fairQueue
	wanted atomic.Int64 // when somebody had to wait for room, in Unix nanoseconds
	// garbage is what bodies have left behind.
	garbage garbage
}

func newWorkspace(size, share, room int64) *workspace {
	return &workspace{space: newFairQueue(size, share, room)}
}

// take waits for room, but not for long.
func (w *workspace) take(ctx context.Context, c claim) error {
	c.cost = c.size
	waiter, err := w.space.enter(c)
	if waiter == nil {
		return err
	}
	w.wanted.Store(time.Now().UnixNano())
	ctx, cancel := context.WithTimeout(ctx, workspaceWait)
	defer cancel()
	return w.space.wait(ctx, waiter)
}

// room is memory that somebody has taken. It is given back once.
type room struct {
	in       *workspace
	giveBack func()
}

// hold takes room, if there is any.
func (w *workspace) hold(ctx context.Context, c claim) *room {
	if w.take(ctx, c) != nil {
		return nil
	}
	return w.room(c.user, c.size)
}

func (w *workspace) room(user string, size int64) *room {
	return &room{w, sync.OnceFunc(func() { w.space.give(user, size) })}
}

// late tells that a client has taken too long to read so many bytes, if others want the memory.
func (r *room) late(read int64, took time.Duration) bool {
	due := time.Duration(read) * time.Second / paceMin
	return took > paceGrace+due && time.Since(time.Unix(0, r.in.wanted.Load())) < paceWanted
}

// made is a response whose body takes as much memory as is claimed. If there is none, upstream has to answer.
func (w *workspace) made(ctx context.Context, c claim, do func() (*response, error)) (*response, error) {
	if w.take(ctx, c) != nil {
		return nil, errForward
	}
	keeps := int64(0)
	defer func() { // what making it took, whatever happens
		w.garbage.add(c.size - keeps)
		w.space.give(c.user, c.size-keeps)
	}()
	resp, err := do()
	if err != nil || resp.bytes == nil {
		return resp, err
	}
	resp.length = int64(len(resp.bytes))
	keeps = min(resp.length, c.size)
	resp.reader = &held{rest: resp.bytes, room: w.room(c.user, keeps)}
	resp.bytes = nil
	return resp, nil
}

// held is a body that gives its memory back when it was written, or never will be. It is written in
// pieces, each of which the client has a while to read.
type held struct {
	*room
	rest  []byte
	read  int64
	began time.Time
}

var errSlowReader = errors.New("the client reads too slowly what others wait for the memory of")

// next is the next piece of a body, of most bytes at most.
func (h *held) next(most int) ([]byte, error) {
	if len(h.rest) == 0 {
		return nil, io.EOF
	}
	now := time.Now()
	if h.began.IsZero() {
		h.began = now
	}
	if h.late(h.read, now.Sub(h.began)) {
		return nil, errSlowReader
	}
	piece := h.rest[:min(most, len(h.rest))]
	h.rest = h.rest[len(piece):]
	h.read += int64(len(piece))
	return piece, nil
}

// Read implements io.Reader.
func (h *held) Read(p []byte) (int, error) {
	piece, err := h.next(len(p))
	return copy(p, piece), err
}

// WriteTo implements io.WriterTo.
func (h *held) WriteTo(w io.Writer) (written int64, err error) {
	for {
		piece, err := h.next(writeSize)
		if errors.Is(err, io.EOF) {
			return written, nil
		}
		if err != nil {
			return written, err
		}
		n, err := w.Write(piece)
		if written += int64(n); err != nil {
			return written, err
		}
	}
}

// Close implements io.Closer.
func (h *held) Close() error {
	h.rest = nil
	h.giveBack()
	return nil
}
