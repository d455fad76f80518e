package conn

import (
	"sync"
	"time"
)

// Set is the set of open connections of all clients. The listener limits its size.
type Set struct {
	mu struct {
		sync.Mutex
		open  map[*Conn]struct{}
		drain *Drain // nil before the drain
		cut   bool
	}
}

// Drain has the times for which connections wait for requests while the server drains.
type Drain struct {
	// First is the end of the wait for the first request of a connection. A client that has opened
	// a connection is about to send a request, and must get an answer.
	First time.Time
	// Next is the wait for a further request, which may be on its way.
	Next time.Duration
}

// add adds a connection and returns the new number of connections. It fails if the set already has
// most connections. The connection leaves the set when it closes.
func (s *Set) add(c *Conn, most int) (open int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.cut || len(s.mu.open) >= most {
		return 0, false
	}
	if s.mu.open == nil {
		s.mu.open = map[*Conn]struct{}{}
	}
	s.mu.open[c] = struct{}{}
	c.set = s
	c.mu.drain = s.mu.drain // nothing waits for a request yet
	return len(s.mu.open), true
}

func (s *Set) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, c)
}

// Drain limits the waits for requests.
func (s *Set) Drain(d Drain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.drain = &d
	for c := range s.mu.open {
		c.drain(&d)
	}
}

// Cut ends all connections and refuses further connections.
func (s *Set) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cut = true
	for c := range s.mu.open {
		_ = c.socket.Close() // below TLS, because TLS would wait for a running write
	}
}

// Len returns the number of open connections.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.open)
}
