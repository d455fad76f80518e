//go:build !race

package grants

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The race detector of Go 1.26 crashes in this test, in its own code (tsan_rtl.cpp), when bubbles
// with many goroutines end.

// In all orders of grants, lists, watches, lost connections, lost memory, changed identities and
// replicas, all clients know in the end the objects of those namespaces that they may read.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { randomly(t, seed) })
	}
}

// model has two replicas, each with its book and its own view of upstream's state, and the rights
// of two identities of one user.
type model struct {
	*testing.T
	r          *rand.Rand
	denyTTL    time.Duration
	rv         uint64
	books      [2]*Book
	newest     [2]uint64
	identities [2]*upstream
	clients    [5]client
}

type client struct {
	identity, replica int
	rv                uint64
	names             []string // those whose objects it has
	open              *Seen
}

func (m *model) settle(c *client, q Query) Seen {
	m.Helper()
	k := Key{Question: [32]byte{byte(c.identity)}}
	g := m.books[c.replica].Of(k, func() uint64 { return m.newest[c.replica] })
	q.Review, q.DenyTTL = m.identities[c.identity].review, m.denyTTL
	seen, err := g.Settle(m.Context(), q)
	if err != nil {
		m.Fatal(err)
	}
	return seen
}

// lists makes a client list what its replica has, or what upstream has.
func (m *model) lists(c *client, fresh bool) {
	if fresh {
		m.newest[c.replica] = m.rv
	}
	at := m.newest[c.replica]
	*c = client{c.identity, c.replica, at, m.settle(c, m.identities[0].query(false, at)).Namespaces, nil}
}

// watches makes a client watch from its resourceVersion, or list again.
func (m *model) watches(c *client) {
	m.newest[c.replica] = max(m.newest[c.replica], c.rv)
	if seen := m.settle(c, m.identities[0].past(c.rv)); seen.Known {
		c.open = &seen
	} else {
		c.rv = 0
	}
}

func (m *model) step() {
	c := &m.clients[m.r.IntN(len(m.clients))]
	switch m.r.IntN(10) {
	case 0:
		u := m.identities[m.r.IntN(2)]
		u.grant(m.r.IntN(2) == 0, both, u.objects[m.r.IntN(len(u.objects))])
		m.rv++
	case 1:
		m.rv += uint64(m.r.IntN(3))
		m.newest[m.r.IntN(2)] = m.rv
	case 2:
		time.Sleep(time.Duration(m.r.IntN(int(m.denyTTL))))
	case 3:
		time.Sleep(replicasLag)
		m.newest = [2]uint64{m.rv, m.rv}
	case 4, 5:
		m.lists(c, m.r.IntN(2) == 0)
	case 6:
		if c.open == nil && c.rv != 0 {
			m.watches(c)
		}
	case 7: // gets events
		if c.open == nil {
			break
		}
		if c.open.Changed() {
			c.rv, c.open = 0, nil
		} else {
			c.rv = max(c.rv, m.newest[c.replica])
		}
	case 8: // loses its connection
		if c.open = nil; m.r.IntN(3) == 0 {
			c.replica, c.identity = m.r.IntN(2), m.r.IntN(2)
		}
	case 9:
		if b := m.books[m.r.IntN(2)]; m.r.IntN(10) == 0 && b.recent.Len() > 0 {
			b.mu.Lock()
			b.dropLocked(b.recent.Back().Value.(*Grants))
			b.mu.Unlock()
		}
	}
}

func randomly(t *testing.T, seed uint64) {
	m := &model{T: t, r: rand.New(rand.NewPCG(seed, 1)), rv: 100, denyTTL: denyTTL}
	if seed%2 == 1 {
		m.denyTTL = allowTTL + 2*replicasLag
	}
	for i := range 2 {
		m.books[i], m.newest[i], m.identities[i] = NewBook(), m.rv, newUpstream("a", "b", "c", "d")
	}
	for range 500 {
		m.step()
	}
	for range 4 { // each client goes on, or is sent back
		time.Sleep(max(allowTTL, m.denyTTL))
		m.rv += 5
		m.newest = [2]uint64{m.rv, m.rv}
		for i := range m.clients {
			c := &m.clients[i]
			if c.open != nil {
				q := m.identities[0].past(m.rv)
				m.settle(c, q)
			}
			if c.open != nil && c.open.Changed() {
				c.rv, c.open = 0, nil
			}
			if c.rv == 0 {
				m.lists(c, true)
			}
			if c.open == nil {
				m.watches(c)
			}
		}
	}
	for i, c := range m.clients {
		if c.open == nil {
			t.Fatalf("seed %d: client %d does not watch", seed, i)
		}
		for _, name := range m.identities[0].objects {
			has := slices.Contains(c.names, name) && slices.Contains(c.open.Namespaces, name)
			if may := m.identities[c.identity].rights["list "+name]; has != may {
				t.Fatalf("seed %d: client %d may see %s: %v, but has %v and watches %v", seed, i, name, may, c.names, c.open.Namespaces)
			}
		}
	}
}
