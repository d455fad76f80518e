package fair

import (
	"sync"
	"time"
)

// Guard limits the memory of bytes that a client does not read. If a wait for the client lasts longer
// than guardGrace, the bytes need room in the workspace. If there is none, the response or the
// connection must end. It must also end if the wait has held room for guardAgain and others have had
// to wait for room. A nil guard limits nothing.
type Guard struct {
	room    *Workspace
	size    int64
	user    func() string
	refused func()
	mu      struct {
		sync.Mutex
		timer *time.Timer
		waits bool      // the client has bytes to read
		large int64     // more bytes than usual that the client does not read, see Large
		held  int64     // bytes of room
		since time.Time // when the room was taken
		by    string    // the user who holds the room
		// refused is true once the client was refused room, even if its wait ends before it is told.
		refused bool
	}
}

const (
	// guardGrace is the time for which unread bytes need no room.
	guardGrace = time.Second
	// guardAgain is the interval at which a client that still does not read may lose its room.
	guardAgain = 10 * time.Second
)

// Guard returns a guard for size bytes of a user. It calls refused if there is no room. A nil
// workspace has no guards.
func (w *Workspace) Guard(size int64, user func() string, refused func()) *Guard {
	if w == nil {
		return nil
	}
	return &Guard{room: w, size: size, user: user, refused: refused}
}

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
		g.mu.timer = time.AfterFunc(guardGrace, g.look)
	default:
		g.mu.timer.Reset(guardGrace)
	}
	g.mu.waits = true
}

func (g *Guard) look() {
	if !g.keeps() {
		g.refused()
	}
}

// keeps reports whether the client may wait longer.
func (g *Guard) keeps() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.mu.waits:
		return true
	case g.mu.held > 0 && time.Since(g.mu.since) >= guardAgain && g.room.Wanted(), !g.holdLocked():
		g.mu.refused = true
		return false
	}
	g.mu.timer.Reset(guardAgain)
	return true
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
	size := max(g.size, g.mu.large)
	if g.mu.held == 0 {
		g.mu.by, g.mu.since = g.user(), time.Now()
		if g.room.Try(Claim{User: g.mu.by, Size: size}) {
			g.mu.held = size
		}
	}
	return g.mu.held > 0
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

// End ends the wait and gives the room back. It returns false if the client has ever been refused
// room.
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
		g.room.Give(g.mu.by, g.mu.held)
		g.mu.held = 0
	}
	return !g.mu.refused
}
