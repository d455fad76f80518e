package listen

import "sync"

// connSet is the open connections of all clients. The listener bounds it.
type connSet struct {
	mu struct {
		sync.Mutex
		open map[*conn]struct{}
		cut  bool
	}
}

// add adds a connection unless there are most already, and returns how many there are then.
// Its Close takes it out.
func (s *connSet) add(c *conn, most int) (open int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.cut || len(s.mu.open) >= most {
		return 0, false
	}
	if s.mu.open == nil {
		s.mu.open = map[*conn]struct{}{}
	}
	s.mu.open[c] = struct{}{}
	c.set = s
	return len(s.mu.open), true
}

func (s *connSet) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, c)
}

// drain ends connections that have no request. Others do not wait for a further one.
func (s *connSet) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.open {
		c.drain()
	}
}

// cut ends all connections, and refuses further ones.
func (s *connSet) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cut = true
	for c := range s.mu.open {
		_ = c.socket.Close() // below TLS, which would wait for a write
	}
}

func (s *connSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.open)
}
