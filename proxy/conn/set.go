package conn

import (
	"container/list"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// Set is the set of open connections of all clients. The listener limits its size.
//
// A connection is a stranger's until a user's limit counts it. Strangers of one network (see
// [access.Network]) have at most half of the connections. If they have more, or if no connection is left,
// the oldest of these strangers makes room, so that silent strangers keep nobody out for long. But the
// clients that come together, after a restart for example, have the time to say who they are.
type Set struct {
	mu struct {
		sync.Mutex
		open      map[*Conn]struct{}
		strangers list.List             // of *Conn, oldest first
		networks  map[string]*list.List // the same, by network
		drain     *Drain                // nil before the drain
		cut       bool
	}
}

// silence is the time that a stranger's connection has before it may have to make room. A handshake may
// take as long.
const silence = handshakeTimeout

// stranger is the place of a connection among those of strangers.
type stranger struct {
	network string
	since   time.Time
	of, all *list.Element // nil if the client is known
}

// Drain has the times for which connections wait for requests while the server drains.
type Drain struct {
	// First is the end of the wait for the first request of a connection. A client that has opened
	// a connection is about to send a request, and must get an answer.
	First time.Time
	// Next is the wait for a further request, which may be on its way.
	Next time.Duration
}

// add adds a connection, of which most are served. It returns the new number of connections, and the
// stranger's connection that has made room, which must be closed. It fails if there are already as many
// connections as may be open. The connection leaves the set when it closes.
func (s *Set) add(c *Conn, most, all int) (open int, silent *Conn, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.open == nil {
		s.mu.open, s.mu.networks = map[*Conn]struct{}{}, map[string]*list.List{}
	}
	network := access.Network(c.RemoteAddr().String())
	of := s.mu.networks[network]
	switch {
	case s.mu.cut:
		return 0, nil, false
	case of != nil && of.Len() >= max(1, most/2):
		if silent = s.silentLocked(of); silent == nil {
			return 0, nil, false
		}
	case len(s.mu.open) >= most:
		if silent = s.silentLocked(&s.mu.strangers); silent == nil && len(s.mu.open) >= all {
			return 0, nil, false
		}
	}
	if of = s.mu.networks[network]; of == nil {
		of = list.New()
		s.mu.networks[network] = of
	}
	c.stranger = stranger{network: network, since: time.Now(), of: of.PushBack(c), all: s.mu.strangers.PushBack(c)}
	s.mu.open[c] = struct{}{}
	c.set = s
	c.mu.drain = s.mu.drain // nothing waits for a request yet
	return len(s.mu.open), silent, true
}

// silentLocked removes the oldest connection of strangers, if it had enough time.
func (s *Set) silentLocked(strangers *list.List) *Conn {
	first := strangers.Front()
	if first == nil {
		return nil
	}
	oldest := first.Value.(*Conn)
	if time.Since(oldest.stranger.since) < silence {
		return nil
	}
	s.removeLocked(oldest)
	return oldest
}

func (s *Set) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(c)
}

func (s *Set) removeLocked(c *Conn) {
	delete(s.mu.open, c)
	s.knownLocked(c)
}

// known says that a connection is a user's.
func (s *Set) known(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.knownLocked(c)
}

func (s *Set) knownLocked(c *Conn) {
	if c.stranger.of == nil {
		return
	}
	s.mu.strangers.Remove(c.stranger.all)
	of := s.mu.networks[c.stranger.network]
	if of.Remove(c.stranger.of); of.Len() == 0 {
		delete(s.mu.networks, c.stranger.network)
	}
	c.stranger = stranger{}
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
