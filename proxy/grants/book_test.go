package grants

import (
	"errors"
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
		if b.users[user].bytes != n || n > userMost {
			t.Fatalf("%s has %d bytes, want %d", user, b.users[user].bytes, n)
		}
	}
	if b.bytes > most {
		t.Fatalf("%d bytes", b.bytes)
	}
}

func (g *Grants) decides(n int) {
	clear(g.list.verdicts)
	for i := range n {
		g.list.verdicts[fmt.Sprint(i)] = verdict{}
	}
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBook()
		u := newUpstream()
		of := func(user string, n byte) (*Grants, bool) {
			g := u.of(b, Key{User: user, Question: [32]byte{n}})
			g.decides(userMost / 4 / verdictCost)
			_, full := b.settled(g, &Query{}, false)
			b.consistent(t)
			return g, full
		}
		quiet, _ := of("quiet", 0)
		var greedy []*Grants
		for i := range byte(3) {
			g, full := of("greedy", i)
			greedy = append(greedy, g)
			if full {
				t.Fatalf("grants %d have no room", i)
			}
		}
		if _, full := of("greedy", 3); !full {
			t.Error("the last grants of a user above the share are not refused")
		}
		time.Sleep(recent + 1)
		if _, full := of("greedy", 3); full || !greedy[0].dropped.Load() || greedy[1].dropped.Load() {
			t.Error("the user's oldest grants were not used for a while, but are not dropped")
		}
		for i := range most / userMost {
			of(fmt.Sprint("user", i), 0)
			of(fmt.Sprint("user", i), 1)
			of(fmt.Sprint("user", i), 2)
		}
		if quiet.dropped.Load() {
			t.Error("the grants of the smallest user are dropped")
		}
		if n, bytes := b.Held(); n == 0 || bytes > most {
			t.Errorf("%d grants of %d bytes", n, bytes)
		}
		if _, err := greedy[0].Settle(t.Context(), u.query(false, 100)); !errors.Is(err, errFull) {
			t.Errorf("error %v of a read whose grants were dropped", err)
		}
		b.consistent(t)
	})
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
	b, u := NewBook(), newUpstream("a")
	g, other := u.of(b, Key{}), u.of(b, Key{User: "another"})
	want := func(ttl time.Duration) {
		t.Helper()
		if got := b.denyTTL(g, denyTTL); got.Round(time.Second) != ttl {
			t.Errorf("denied for %v, want %v", got, ttl)
		}
	}
	want(denyTTL)
	other.decides(20 * deniedRate)
	b.settled(other, &Query{}, false)
	want(20 * time.Second)
	other.decides(200 * deniedRate)
	b.settled(other, &Query{}, false)
	want(deniedStretch * denyTTL)
	g.decides(90 * deniedUserRate)
	b.settled(g, &Query{}, false)
	want(90 * time.Second)
}

// Decisions on namespaces without objects are forgotten when they end, if they deny.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, u := NewBook(), newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(b, Key{})
		settle(t, g, u.query(false, 100))
		u.objects = []string{"c"}
		for _, want := range []int{3, 2} {
			settle(t, g, u.query(false, 100))
			if len(g.list.verdicts) != want {
				t.Errorf("decisions: %v, want %d", g.list.verdicts, want)
			}
			time.Sleep(denyTTL)
		}
		b.consistent(t)
	})
}
