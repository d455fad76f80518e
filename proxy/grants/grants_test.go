package grants

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	allowTTL = time.Minute
	denyTTL  = 10 * time.Second
)

// upstream is what an apiserver would say, and the state of a cache.
type upstream struct {
	mu      sync.Mutex
	rights  map[string]bool // "verb namespace"
	objects []string        // namespaces with objects
	newest  uint64
	asked   map[string]int
	most    int // reviews at a time
	now     int
	err     func(verb, namespace string) error
	delay   time.Duration
}

func newUpstream(objects ...string) *upstream {
	return &upstream{rights: map[string]bool{}, objects: objects, newest: 100, asked: map[string]int{}}
}

func (u *upstream) grant(allowed bool, verbs []string, namespaces ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, verb := range verbs {
		for _, n := range namespaces {
			u.rights[verb+" "+n] = allowed
		}
	}
}

// settled is the time after which a set is settled.
func settled(denyTTL time.Duration) time.Duration {
	return max(allowTTL, denyTTL+overdueMost) + settleWait + replicasLag + 1
}

var both = []string{"list", "watch"}

func (u *upstream) review(ctx context.Context, verb, namespace string) (bool, error) {
	u.mu.Lock()
	u.asked[verb+" "+namespace]++
	u.now++
	u.most = max(u.most, u.now)
	u.mu.Unlock()
	var err error
	delay := u.delay
	if namespace == "" {
		delay = 0
	}
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(delay):
		if u.err != nil {
			err = u.err(verb, namespace)
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.now--; err != nil {
		return false, err
	}
	return u.rights[verb+" "+namespace], nil
}

func (u *upstream) query(watch bool, at uint64) Query {
	return Query{
		Watch: watch, Review: u.review, At: at, AllowTTL: allowTTL, DenyTTL: denyTTL,
		Namespaces: func() iter.Seq[string] { return slices.Values(u.objects) },
	}
}

// past is the query of a watch that resumes.
func (u *upstream) past(at uint64) Query {
	q := u.query(true, at)
	q.Past = true
	return q
}

func (u *upstream) of(b *Book, k Key) *Grants {
	return b.Of(k, func() uint64 { u.mu.Lock(); defer u.mu.Unlock(); return u.newest })
}

func settle(t *testing.T, g *Grants, q Query) Seen {
	t.Helper()
	seen, err := g.Settle(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func (u *upstream) count() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, asked := range u.asked {
		n += asked
	}
	clear(u.asked)
	return n
}

func wantSeen(t *testing.T, got Seen, since uint64, names ...string) {
	t.Helper()
	if got.All || got.Since != since || !slices.Equal(got.Namespaces, names) {
		t.Errorf("saw %v since %d (all: %v), want %v since %d", got.Namespaces, got.Since, got.All, names, since)
	}
}

func TestListsThenWatches(t *testing.T) {
	u := newUpstream("a", "a-b", "b", "c")
	u.grant(true, both, "a", "c")
	u.grant(true, []string{"list"}, "b") // and not watch
	u.grant(true, []string{"watch"}, "a-b")
	g := u.of(NewBook(), Key{})
	wantSeen(t, settle(t, g, u.query(false, 100)), 100, "a", "b", "c")
	wantSeen(t, settle(t, g, u.query(true, 101)), 100, "a", "c") // a watch from the list goes on
	if n := u.asked["watch a-b"]; n != 0 {
		t.Errorf("watch was reviewed %d times where list is denied", n)
	}
	if all := u.asked["list a"]; all != 1 {
		t.Errorf("list was reviewed %d times", all)
	}
}

// A watch resumes if its client was shown the same: by a list of this proxy, or long after a
// change.
func TestPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		known := func(at uint64, want bool) {
			t.Helper()
			if seen := settle(t, g, u.past(at)); seen.Known != want {
				t.Errorf("at %d the past is known: %v, want %v", at, seen.Known, want)
			}
		}
		known(100, false) // by whom?
		u.newest = 110
		settle(t, g, u.query(false, 110))
		known(110, true)
		known(109, false)
		known(111, false)
		for at := range uint64(issuedMost) {
			settle(t, g, u.query(false, 120+at))
		}
		known(110, false) // forgotten
		known(120, true)
		time.Sleep(settled(denyTTL))
		u.newest = 200
		known(199, false)
		known(201, true) // no replica can have shown anything else
		known(120, true)
		u.grant(true, both, "b")
		time.Sleep(denyTTL)
		known(201, false)
		known(120, false)
	})
}

// Identities of a user may have different rights. A client may get another identity, as its token
// does.
func TestIdentities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBook()
		one, two := newUpstream("a", "b"), newUpstream("a", "b")
		one.grant(true, both, "a")
		two.grant(true, both, "a", "b")
		of := func(u *upstream, n byte) *Grants { return u.of(b, Key{Question: [32]byte{n}}) }
		settle(t, of(one, 1), one.query(false, 100))
		time.Sleep(settled(denyTTL))
		settle(t, of(one, 1), one.query(false, 100))
		if seen := settle(t, of(one, 3), one.past(101)); !seen.Known || seen.Since != 100 {
			t.Errorf("%+v: another identity that sees the same has the same past", seen)
		}
		two.newest = 105
		settle(t, of(two, 2), two.query(false, 105))
		two.newest = 110
		if seen := settle(t, of(two, 2), two.past(106)); seen.Known {
			t.Error("the client may have been shown less before")
		}
		if seen := settle(t, of(two, 2), two.past(105)); !seen.Known {
			t.Error("a watch from the list of its identity does not go on")
		}
		if seen := settle(t, of(one, 1), one.past(104)); seen.Known {
			t.Error("the client may have been shown more before")
		}
		b.mu.Lock()
		b.dropLocked(b.grants[Key{Question: [32]byte{2}}])
		b.mu.Unlock()
		if seen := settle(t, of(one, 1), one.past(104)); seen.Known {
			t.Error("the client may have been shown more before the grants were dropped")
		}
		one.newest = 120
		if seen := settle(t, of(one, 1), one.past(111)); !seen.Known {
			t.Error("since then, nothing else was shown")
		}
		two.grant(false, both, "b")
		if seen := settle(t, of(two, 2), two.past(110)); seen.Known || seen.Since != 111 {
			t.Errorf("%+v: the same identity may have been shown more before its grants were dropped", seen)
		}
	})
}

// A client has been shown more by one identity. Then that identity may read as little as the client's
// other identity, which has seen no change for long.
func TestIdentitiesBecomeTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBook()
		one, two := newUpstream("a", "b"), newUpstream("a", "b")
		one.grant(true, both, "a")
		two.grant(true, both, "a", "b")
		of := func(u *upstream, n byte) *Grants { return u.of(b, Key{Question: [32]byte{n}}) }
		for range 2 {
			settle(t, of(one, 1), one.query(false, 100))
			settle(t, of(one, 1), one.query(true, 100))
			time.Sleep(settled(denyTTL))
		}
		one.newest, two.newest = 105, 105
		settle(t, of(two, 2), two.query(false, 105))
		settle(t, of(two, 2), two.query(true, 105))
		two.grant(false, both, "b")
		time.Sleep(allowTTL)
		one.newest, two.newest = 110, 110
		settle(t, of(two, 2), two.query(false, 110))
		settle(t, of(two, 2), two.query(true, 110))
		if seen := settle(t, of(one, 1), one.past(105)); seen.Known {
			t.Error("the client may have been shown more by the other identity")
		}
		if seen := settle(t, of(one, 3), one.past(105)); seen.Known {
			t.Error("a new identity takes over a past that is not settled")
		}
		one.newest = 120
		if seen := settle(t, of(one, 1), one.past(115)); seen.Known {
			t.Error("another replica may have shown more since")
		}
		time.Sleep(settled(denyTTL))
		settle(t, of(one, 1), one.query(false, 120))
		one.newest = 130
		if seen := settle(t, of(one, 1), one.past(125)); !seen.Known {
			t.Errorf("%+v: since then, nothing else was shown", seen)
		}
	})
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		list, watch := settle(t, g, u.query(false, 100)), settle(t, g, u.query(true, 100))
		u.count()
		u.grant(true, both, "b")
		wantSeen(t, settle(t, g, u.query(false, 100)), 100, "a") // it is remembered
		if n := u.count(); n != 1 {
			t.Errorf("%d reviews, want that of all namespaces", n)
		}
		time.Sleep(denyTTL)
		u.newest = 150
		wantSeen(t, settle(t, g, u.query(false, 150)), 151, "a", "b")
		if !list.Changed() || !watch.Changed() {
			t.Error("a new set of lists ends watches, too")
		}
		now := settle(t, g, u.query(true, 150))
		wantSeen(t, now, 151, "a", "b")
		if now.Changed() {
			t.Error("the new watch does not go on")
		}

		u.grant(false, both, "a")
		time.Sleep(allowTTL)
		u.newest = 200
		wantSeen(t, settle(t, g, u.query(true, 201)), 201, "b")
		if !now.Changed() {
			t.Error("the revocation changes the set")
		}

		u.objects = []string{"a"} // b has no objects any more, but may get some
		wantSeen(t, settle(t, g, u.query(false, 220)), 201, "b")

		u.grant(true, both, "")
		u.newest = 250
		if seen := settle(t, g, u.query(true, 250)); !seen.All || seen.Since != 251 {
			t.Errorf("%+v, want all since 251", seen)
		}
		u.grant(false, both, "")
		wantSeen(t, settle(t, g, u.query(false, 250)), 251)
	})
}

// Open watches renew decisions before these end. Otherwise they end.
func TestEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		watch := settle(t, g, u.query(true, 100))
		early := func(after time.Duration, list, denied int) {
			t.Helper()
			clear(u.asked)
			time.Sleep(after)
			q := u.past(100)
			q.Early = true
			settle(t, g, q)
			if u.asked["list a"] != list || u.asked["watch a"] != list || u.asked["list b"] != denied {
				t.Errorf("reviews: %v, want %d of a and %d of b", u.asked, list, denied)
			}
		}
		early(denyTTL*3/4-tick, 0, 0)
		early(2*tick, 0, 1)
		early(allowTTL/2-denyTTL*3/4, 1, 1)
		time.Sleep(allowTTL - tick)
		if watch.Changed() {
			t.Error("the decision still counts")
		}
		q := u.query(false, 100)
		q.Early = true
		settle(t, g, q) // renews those of lists
		time.Sleep(tick)
		if !watch.Changed() {
			t.Error("the watch goes on after its decisions have ended")
		}
	})
}

// A revocation ends watches at once, although other reviews take long.
func TestRevokedBeforeTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		watch := settle(t, g, u.query(true, 100))
		time.Sleep(allowTTL / 2)
		u.grant(false, both, "a")
		u.err = func(_, namespace string) error {
			if namespace == "b" {
				time.Sleep(deniedWait)
			}
			return nil
		}
		q := u.past(100)
		q.Early = true
		var settling sync.WaitGroup
		settling.Go(func() { _, _ = g.Settle(t.Context(), q) })
		time.Sleep(time.Second)
		if !watch.Changed() {
			t.Error("the watch goes on")
		}
		settling.Wait()
	})
}

// To wait for namespaces that were denied before is worth little.
func TestDeniedMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b", "c")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		settle(t, g, u.query(false, 100))
		time.Sleep(denyTTL)
		u.delay = time.Minute
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*deniedWait)
		defer cancel()
		seen, err := g.Settle(ctx, u.query(false, 100))
		if took := time.Since(began); err != nil || took > 2*deniedWait {
			t.Errorf("%v after %v", err, took)
		}
		wantSeen(t, seen, 100, "a")
		time.Sleep(allowTTL)
		u.err = func(string, string) error { return errors.New("broken") }
		if _, err := g.Settle(t.Context(), u.query(false, 100)); err == nil {
			t.Error("a decision that allowed has ended")
		}
	})
}
