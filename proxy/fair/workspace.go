package fair

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
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

// Workspace bounds the memory of answers that are made for one request each, all together, until they are
// written: what clients ask for is not to decide how much memory that is.
type Workspace struct {
	space  *Queue
	wanted atomic.Int64 // when somebody had to wait for room, in Unix nanoseconds
	// garbage is what bodies have left behind.
	garbage garbage
}

// NewWorkspace returns a workspace of size bytes; see NewQueue.
func NewWorkspace(size, share, room int64) *Workspace {
	return &Workspace{space: NewQueue(size, share, room)}
}

// Take waits for room, but not for long.
func (w *Workspace) Take(ctx context.Context, c Claim) error {
	c.Cost = c.Size
	waiter, err := w.space.Enter(c)
	if waiter == nil {
		return err
	}
	w.wanted.Store(time.Now().UnixNano())
	ctx, cancel := context.WithTimeout(ctx, workspaceWait)
	defer cancel()
	return w.space.Wait(ctx, waiter)
}

// Give gives back some of what a user has taken.
func (w *Workspace) Give(user string, size int64) { w.space.Give(user, size) }

// Discard counts bytes that were taken and are garbage.
func (w *Workspace) Discard(bytes int64) { w.garbage.add(bytes) }

// Taken is how many bytes are taken.
func (w *Workspace) Taken() int64 { return w.space.Taken() }

// CollectAfter has garbage collected when there are more bytes of it; 0 for never.
func (w *Workspace) CollectAfter(bytes int64) { w.garbage.most = bytes }

// Room is memory that somebody has taken. It is given back once.
type Room struct {
	in       *Workspace
	GiveBack func()
}

// Hold takes room, if there is any.
func (w *Workspace) Hold(ctx context.Context, c Claim) *Room {
	if w.Take(ctx, c) != nil {
		return nil
	}
	return w.room(c.User, c.Size)
}

func (w *Workspace) room(user string, size int64) *Room {
	return &Room{w, sync.OnceFunc(func() { w.Give(user, size) })}
}

// late tells that a client has taken too long to read so many bytes, if others want the memory.
func (r *Room) late(read int64, took time.Duration) bool {
	due := time.Duration(read) * time.Second / paceMin
	return took > paceGrace+due && time.Since(time.Unix(0, r.in.wanted.Load())) < paceWanted
}

// Make makes a body. While that is done, it takes as much memory as is claimed, and from then on its
// length until it is closed.
func (w *Workspace) Make(ctx context.Context, c Claim, do func() ([]byte, error)) (*Body, error) {
	if err := w.Take(ctx, c); err != nil {
		return nil, err
	}
	keeps := int64(0)
	defer func() { // what making it took, whatever happens
		w.Discard(c.Size - keeps)
		w.Give(c.User, c.Size-keeps)
	}()
	body, err := do()
	if err != nil {
		return nil, err
	}
	keeps = min(int64(len(body)), c.Size)
	return &Body{rest: body, Room: w.room(c.User, keeps)}, nil
}

// Body is a body that gives its memory back when it was written, or never will be. It is written in
// pieces, each of which the client has a while to read.
type Body struct {
	*Room
	rest  []byte
	read  int64
	began time.Time
}

var errSlowReader = errors.New("the client reads too slowly what others wait for the memory of")

// next is the next piece of a body, of most bytes at most.
func (h *Body) next(most int) ([]byte, error) {
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

// Length is how much is left of the body, in bytes.
func (h *Body) Length() int64 { return int64(len(h.rest)) }

// Read implements io.Reader.
func (h *Body) Read(p []byte) (int, error) {
	piece, err := h.next(len(p))
	return copy(p, piece), err
}

// WriteTo implements io.WriterTo.
func (h *Body) WriteTo(w io.Writer) (written int64, err error) {
	for {
		piece, err := h.next(WriteSize)
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
func (h *Body) Close() error {
	h.rest = nil
	h.GiveBack()
	return nil
}

// Shares are a part of the workspace that several answers take together.
type Shares struct {
	in   *Workspace
	left atomic.Int64 // of those who hold it
	free func()
}

// Shared returns shares that free gives back when nobody holds them any more.
func (w *Workspace) Shared(free func()) *Shares { return &Shares{in: w, free: free} }

// LetGo takes so many off those who hold the shares; nil shares take nothing.
func (s *Shares) LetGo(n int) {
	if s != nil && s.left.Add(int64(-n)) == 0 {
		s.free()
	}
}

// Body is the body of one of those who hold the shares.
func (s *Shares) Body(whole []byte) *Body {
	return &Body{rest: whole, Room: &Room{s.in, sync.OnceFunc(func() { s.LetGo(1) })}}
}
