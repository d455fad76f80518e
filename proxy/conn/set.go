package conn

import (
	"container/list"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// Set is the set of open connections of all clients. The listener limits its size.
//
// A connection is a stranger's until a user's limit counts it. If no connection is left for a
// client, the oldest stranger's connection of the network (see [access.Network]) with the most
// strangers ends. So strangers of a few networks keep nobody else out. Among networks with as many
// strangers as the client's, a stranger stays for handshakeTimeout: after a restart, many come
// together.
type Set struct {
	mu struct {
		sync.Mutex
		open     map[*Conn]stranger
		networks map[string]*list.List // of strangers' *Conn, oldest first
		drain    *Drain                // nil before the drain
		cut      bool
	}
}

// stranger is the place of a connection among those of strangers. It is zero for a user's.
type stranger struct {
	network string
	since   time.Time
	place   *list.Element
}

// Drain has the times for which connections wait for requests while the server drains.
type Drain struct {
	// First is the end of the wait for the first request of a connection. A client that has opened
	// a connection is about to send a request, and must get an answer.
	First time.Time
	// Next is the wait for a further request, which may be on its way.
	Next time.Duration
}

// add adds a connection until it closes. Up to most are served, and up to all may be open. evicted
// is the stranger's connection that has made room, which the caller must close.
func (s *Set) add(c *Conn, most, all int) (open int, evicted *Conn, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.open == nil {
		s.mu.open, s.mu.networks = map[*Conn]stranger{}, map[string]*list.List{}
	}
	network := access.Network(c.RemoteAddr().String())
	if !s.mu.cut && len(s.mu.open) >= most {
		evicted = s.makeRoomLocked(network)
	}
	if s.mu.cut || len(s.mu.open) >= all {
		return 0, nil, false
	}
	of := s.mu.networks[network]
	if of == nil {
		of = list.New()
		s.mu.networks[network] = of
	}
	s.mu.open[c] = stranger{network, time.Now(), of.PushBack(c)}
	c.set = s
	c.mu.drain = s.mu.drain // nothing waits for a request yet
	return len(s.mu.open), evicted, true
}

// makeRoomLocked removes a stranger's connection for a client of a network. It returns nil if there
// is none, or if no network has more strangers than this one would have, and they are all new.
func (s *Set) makeRoomLocked(network string) *Conn {
	var of *list.List
	for _, other := range s.mu.networks {
		if of == nil || other.Len() > of.Len() {
			of = other
		}
	}
	if of == nil {
		return nil
	}
	fair := 1
	if own := s.mu.networks[network]; own != nil {
		fair += own.Len()
	}
	for at := of.Front(); at != nil; at = of.Front() {
		oldest := at.Value.(*Conn)
		switch {
		case oldest.Account.Known(): // since this moment
			s.knownLocked(oldest)
		case of.Len() <= fair && time.Since(s.mu.open[oldest].since) < handshakeTimeout:
			return nil
		default:
			s.removeLocked(oldest)
			return oldest
		}
	}
	return nil
}

func (s *Set) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(c)
}

func (s *Set) removeLocked(c *Conn) {
	s.knownLocked(c)
	delete(s.mu.open, c)
}

func (s *Set) known(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.knownLocked(c)
}

func (s *Set) knownLocked(c *Conn) {
	as := s.mu.open[c]
	if as.place == nil {
		return
	}
	of := s.mu.networks[as.network]
	if of.Remove(as.place); of.Len() == 0 {
		delete(s.mu.networks, as.network)
	}
	s.mu.open[c] = stranger{}
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
