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
	// workspaceWait limits a read's wait for memory. After that, upstream answers.
	workspaceWait = 2 * time.Second
	// paceMin is the minimum rate, in bytes a second, at which a client must read a body in the
	// workspace. It applies after paceGrace, and only if another claim had to wait for memory
	// within the last paceWanted.
	paceMin    = 64 << 10
	paceGrace  = 10 * time.Second
	paceWanted = 2 * time.Minute
)

// Workspace limits the memory of all responses that are made for one request, until they are
// written. Without this limit, clients would decide how much memory the proxy needs.
type Workspace struct {
	*Pool
	wanted atomic.Pointer[time.Time] // when a claim last had to wait for memory; nil if none has
}

// NewWorkspace returns a workspace of size bytes; see NewPool.
func NewWorkspace(size int64, shared bool, room int64) *Workspace {
	return &Workspace{Pool: NewPool(size, shared, room)}
}

// Take waits for memory, for workspaceWait at most.
func (w *Workspace) Take(ctx context.Context, c Claim) error {
	waiter, err := w.Enter(c)
	if waiter == nil {
		return err
	}
	now := time.Now()
	w.wanted.Store(&now)
	ctx, cancel := context.WithTimeout(ctx, workspaceWait)
	defer cancel()
	return w.Wait(ctx, waiter)
}

// Room is memory that was granted to a claim. GiveBack returns the memory to the workspace; further
// calls do nothing.
type Room struct {
	in       *Workspace
	GiveBack func()
}

// Hold waits for memory. It returns nil and an error if there is none.
func (w *Workspace) Hold(ctx context.Context, c Claim) (*Room, error) {
	if err := w.Take(ctx, c); err != nil {
		return nil, err
	}
	return w.room(c.User, c.Size), nil
}

// Holding returns a function that waits for memory for a user until it is released. A nil
// workspace has room for everything.
func (w *Workspace) Holding(ctx context.Context, user string) func(size int64) (release func(), err error) {
	return func(size int64) (func(), error) {
		if w == nil {
			return func() {}, nil
		}
		room, err := w.Hold(ctx, Claim{User: user, Size: size})
		if err != nil {
			return nil, err
		}
		return room.GiveBack, nil
	}
}

func (w *Workspace) room(user string, size int64) *Room {
	return &Room{w, sync.OnceFunc(func() { w.Give(user, size) })}
}

// late reports whether a client has read too slowly while other claims need the memory. read is the
// number of bytes that the client has read.
func (r *Room) late(read int64, took time.Duration) bool {
	due := time.Duration(read) * time.Second / paceMin
	return took > paceGrace+due && r.in.Wanted()
}

// Wanted reports whether a claim has recently had to wait for memory.
func (w *Workspace) Wanted() bool {
	wanted := w.wanted.Load()
	return wanted != nil && time.Since(*wanted) < paceWanted
}

// Make makes a body within the claimed memory. Then it gives back all memory except the body's own
// length. The body holds this rest until it is closed.
func (w *Workspace) Make(ctx context.Context, c Claim, do func() ([]byte, error)) (*Body, error) {
	if err := w.Take(ctx, c); err != nil {
		return nil, err
	}
	keeps := int64(0)
	defer func() { w.Give(c.User, c.Size-keeps) }() // also after a panic
	body, err := do()
	if err != nil {
		return nil, err
	}
	keeps = min(int64(len(body)), c.Size)
	return &Body{rest: body, Room: w.room(c.User, keeps)}, nil
}

// Body is a body that holds room until it is closed. A client that reads the body too slowly is
// disconnected.
type Body struct {
	*Room
	rest  []byte
	read  int64
	began time.Time
}

var errSlowReader = errors.New("the client reads too slowly while others wait for the memory")

// Length returns the number of unread bytes.
func (h *Body) Length() int64 { return int64(len(h.rest)) }

// Read implements io.Reader.
func (h *Body) Read(p []byte) (int, error) {
	if len(h.rest) == 0 {
		return 0, io.EOF
	}
	now := time.Now()
	if h.began.IsZero() {
		h.began = now
	}
	if h.late(h.read, now.Sub(h.began)) {
		return 0, errSlowReader
	}
	n := copy(p, h.rest)
	h.rest = h.rest[n:]
	h.read += int64(n)
	return n, nil
}

// Close implements io.Closer.
func (h *Body) Close() error {
	h.rest = nil
	h.GiveBack()
	return nil
}

// Shares are memory in the workspace that several responses hold together.
type Shares struct {
	in   *Workspace
	left atomic.Int64 // number of responses that hold the memory
	free func()
}

// Shared returns shares. free gives the memory back after the last response has released it.
func (w *Workspace) Shared(free func()) *Shares { return &Shares{in: w, free: free} }

// Release subtracts n from the number of holders. It does nothing to nil shares.
func (s *Shares) Release(n int) {
	if s != nil && s.left.Add(int64(-n)) == 0 {
		s.free()
	}
}

// Body returns the body of one holder.
func (s *Shares) Body(whole []byte) *Body {
	return &Body{rest: whole, Room: &Room{s.in, sync.OnceFunc(func() { s.Release(1) })}}
}
