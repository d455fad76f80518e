package fair

import (
	"sync"
	"time"
)

// Guard limits the bytes that a client does not read. If it waits longer than guardGrace, they need
// room in a pool. If there is none, the response or the connection must end. A nil guard limits
// nothing.
type Guard struct {
	size int64
	of   Unread
	mu   struct {
		sync.Mutex
		timer *time.Timer
		waits bool   // the client has bytes to read
		large int64  // more bytes than usual that the client does not read, see Large
		held  int64  // bytes of room
		room  *Pool  // that has the bytes
		by    string // the user who holds them
		// refused is true once the client was refused room, even if its wait then ends.
		refused bool
	}
}

// Unread are the bytes that a client does not read.
type Unread interface {
	// UnreadIn returns the pool and the user that hold the bytes. A nil pool has no bound.
	UnreadIn() (*Pool, string)
	// RefuseUnread is called if there is no room.
	RefuseUnread()
}

const guardGrace = time.Second

// NewGuard returns a guard for size bytes.
func NewGuard(size int64, of Unread) *Guard { return &Guard{size: size, of: of} }

// Begin begins a wait for the client, unless one has begun.
func (g *Guard) Begin() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.mu.waits:
	case g.mu.timer == nil:
		g.mu.timer = time.AfterFunc(guardGrace, g.graceEnds)
	default:
		g.mu.timer.Reset(guardGrace)
	}
	g.mu.waits = true
}

// graceEnds takes the room, or refuses to let the client wait longer.
func (g *Guard) graceEnds() {
	g.mu.Lock()
	refuses := g.mu.waits && !g.holdLocked()
	g.mu.refused = g.mu.refused || refuses
	g.mu.Unlock()
	if refuses {
		g.of.RefuseUnread()
	}
}

// Hold takes the room at once. It returns false if there is none.
func (g *Guard) Hold() bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holdLocked()
}

func (g *Guard) holdLocked() bool {
	if g.mu.held > 0 {
		return true
	}
	size := max(g.size, g.mu.large)
	g.mu.room, g.mu.by = g.of.UnreadIn()
	if g.mu.room == nil {
		return true
	}
	if !g.mu.room.Try(g.mu.by, size) {
		return false
	}
	g.mu.held = size
	return true
}

// Large sets the number of bytes that further waits keep in memory, if it is more than usual. Many
// clients may wait for the same bytes, but each may also be the last that keeps them.
func (g *Guard) Large(size int64) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.large = size
}

// End ends the wait and gives the room back. It fails if the client has ever been refused room.
func (g *Guard) End() (ok bool) {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.waits {
		g.mu.timer.Stop()
		g.mu.waits = false
	}
	if g.mu.held > 0 {
		g.mu.room.Give(g.mu.by, g.mu.held)
		g.mu.held = 0
	}
	return !g.mu.refused
}
