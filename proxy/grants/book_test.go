package grants

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func (b *Book) consistent(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes, users := 0, map[string]int{}
	for _, g := range b.grants {
		bytes += g.held.bytes
		users[g.held.key.User] += g.held.bytes
	}
	if bytes != b.bytes || len(users) != len(b.users) || b.recent.Len() != len(b.grants) {
		t.Fatalf("%d bytes of %d users, %d recent, %d grants; have %d bytes of %d users", b.bytes, len(b.users), b.recent.Len(), len(b.grants), bytes, len(users))
	}
	for user, n := range users {
		if b.users[user] != n || n > userMost {
			t.Fatalf("%s has %d bytes, want %d", user, b.users[user], n)
		}
	}
	if b.bytes > most {
		t.Fatalf("%d bytes", b.bytes)
	}
}

func TestBounds(t *testing.T) {
	b := NewBook()
	u := newUpstream()
	of := func(user string, n byte) *Grants {
		g := u.of(b, Key{User: user, Question: [32]byte{n}})
		b.used(g, userMost/4/verdictCost)
		b.consistent(t)
		return g
	}
	quiet := of("quiet", 0)
	var first *Grants
	for i := range byte(5) {
		if g := of("greedy", i); i == 0 {
			first = g
		}
	}
	if !first.dropped.Load() || quiet.dropped.Load() {
		t.Error("a user above the share loses its own oldest grants, and no other user does")
	}
	for i := range 4 * most / userMost { // together they are above the bound
		of(fmt.Sprint("user", i), 0)
	}
	if !quiet.dropped.Load() {
		t.Error("the least recently used grants are not dropped")
	}
	if n, bytes := b.Held(); n == 0 || bytes > most {
		t.Errorf("%d grants of %d bytes", n, bytes)
	}
	b.used(quiet, 1) // which a read still uses
	b.consistent(t)
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, u := NewBook(), newUpstream("a")
		old := u.of(b, Key{User: "old"})
		time.Sleep(idle / 2)
		u.of(b, Key{User: "new"})
		time.Sleep(idle / 2)
		u.of(b, Key{User: "new"})
		if n, _ := b.Held(); n != 1 || !old.dropped.Load() {
			t.Errorf("%d grants, want 1", n)
		}
		b.consistent(t)
	})
}

// New grants begin above all that dropped ones have shown in the same epoch.
func TestFloor(t *testing.T) {
	b, u := NewBook(), newUpstream("a")
	u.grant(true, both, "a")
	k := Key{Cache: "c", Epoch: 1}
	g := u.of(b, k)
	watch := settle(t, g, u.query(true, 100))
	b.mu.Lock()
	b.dropLocked(g)
	b.mu.Unlock()
	if !watch.Changed() {
		t.Error("the watch goes on")
	}
	wantSeen(t, settle(t, u.of(b, k), u.query(false, 100)), 101, "a")
	k.Epoch++
	u.newest = 5
	wantSeen(t, settle(t, u.of(b, k), u.query(false, 5)), 5, "a")
	k.Cache = "another"
	wantSeen(t, settle(t, u.of(b, k), u.query(false, 7)), 7, "a")
}

// Denied namespaces are reviewed less often if there are many.
func TestDeniedTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, u := NewBook(), newUpstream("a")
		b.used(u.of(b, Key{User: "another"}), 20*deniedRate)
		if ttl := b.deniedTTL().Round(time.Second); ttl != 20*time.Second {
			t.Errorf("%v, want 20s", ttl)
		}
		g := u.of(b, Key{})
		settle(t, g, u.query(false, 100))
		time.Sleep(20 * time.Second)
		settle(t, g, u.query(false, 100))
		if n := u.asked["list a"]; n != 1 {
			t.Errorf("%d reviews, want 1", n)
		}
	})
}

// Decisions on namespaces without objects are forgotten if they are denied.
func TestForgets(t *testing.T) {
	b, u := NewBook(), newUpstream("a", "b")
	u.grant(true, both, "a")
	g := u.of(b, Key{})
	settle(t, g, u.query(false, 100))
	u.objects = []string{"c"}
	settle(t, g, u.query(false, 100))
	if len(g.list.verdicts) != 2 {
		t.Errorf("decisions: %v, want a and c", g.list.verdicts)
	}
	b.consistent(t)
}
