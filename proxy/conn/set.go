package conn

import "sync"

// Set is the set of open connections of all clients. The listener limits its size.
type Set struct {
	mu struct {
		sync.Mutex
		open map[*Conn]struct{}
		cut  bool
	}
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
	return len(s.mu.open), true
}

func (s *Set) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, c)
}

// Drain ends connections without a request. The other connections end after their requests.
func (s *Set) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.open {
		c.drain()
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
