package grants

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
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

var both = []string{"list", "watch"}

func (u *upstream) review(_ context.Context, verb, namespace string) (bool, time.Duration, error) {
	u.mu.Lock()
	u.asked[verb+" "+namespace]++
	u.now++
	u.most = max(u.most, u.now)
	u.mu.Unlock()
	var err error
	if time.Sleep(u.delay); u.err != nil {
		err = u.err(verb, namespace)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.now--; err != nil {
		return false, 0, err
	}
	if u.rights[verb+" "+namespace] {
		return true, allowTTL, nil
	}
	return false, denyTTL, nil
}

func (u *upstream) query(watch bool, at uint64) Query {
	return Query{Watch: watch, Review: u.review, At: at, Namespaces: func() iter.Seq[string] { return slices.Values(u.objects) }}
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

// Without any list, a watch that resumes has an unknown past.
func TestUnknownPast(t *testing.T) {
	u := newUpstream("a")
	u.grant(true, both, "a")
	seen := settle(t, u.of(NewBook(), Key{}), u.query(true, u.newest+1))
	wantSeen(t, seen, 101, "a")
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

// Decisions that end soon are made again.
func TestAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		settle(t, g, u.query(true, 100))
		u.count()
		q := u.query(true, 100)
		q.Ahead = denyTTL
		settle(t, g, q)
		if n := u.asked["list b"] + u.asked["list a"]; n != 1 || u.asked["list b"] != 1 {
			t.Errorf("reviews: %v, want list b", u.asked)
		}
	})
}

// After an error nothing is shown, but what is known to be revoked ends watches.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b", "c")
		u.grant(true, both, "a", "b")
		g := u.of(NewBook(), Key{})
		watch := settle(t, g, u.query(true, 100))
		broken := errors.New("broken")
		u.objects = []string{"a", "b", "c", "d"}
		u.grant(true, both, "d") // new
		u.grant(false, both, "a")
		u.err = func(_, namespace string) error {
			if namespace == "c" {
				time.Sleep(time.Second) // after the others
				return broken
			}
			return nil
		}
		time.Sleep(allowTTL)
		if _, err := g.Settle(t.Context(), u.query(true, 100)); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
		if now := g.list.now.Load().names; !slices.Equal(now, []string{"b"}) {
			t.Errorf("%v are shown, want b, which was neither revoked nor granted", now)
		}
		u.err = nil
		wantSeen(t, settle(t, g, u.query(true, 100)), 101, "b", "d")
		if !watch.Changed() {
			t.Error("the watch goes on")
		}

		u.err = func(_, namespace string) error {
			if namespace == "" {
				return broken
			}
			return nil
		}
		if seen, err := g.Settle(t.Context(), u.query(false, 100)); !errors.Is(err, broken) || seen.All || seen.Namespaces != nil {
			t.Errorf("%+v, %v", seen, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		u.err = nil
		time.Sleep(time.Hour)
		g.turn <- struct{}{}
		if _, err := g.Settle(ctx, u.query(false, 100)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v of a client that left", err)
		}
		<-g.turn
	})
}

// Reads at the same time share reviews, of which few are upstream at a time.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		u := newUpstream(names...)
		u.delay = time.Millisecond
		u.grant(true, both, names[:10]...)
		g := u.of(NewBook(), Key{})
		var readers sync.WaitGroup
		for range 20 {
			readers.Go(func() { wantSeen(t, settle(t, g, u.query(false, 100)), 100, names[:10]...) })
		}
		readers.Wait()
		if u.most != parallel {
			t.Errorf("%d reviews at a time, want %d", u.most, parallel)
		}
		for _, name := range names {
			if n := u.asked["list "+name]; n != 1 {
				t.Errorf("%s was reviewed %d times", name, n)
			}
		}
	})
}

// In all orders of grants, lists, watches and lost connections, a watch resumes only for a client that
// knows the objects of the namespaces that it is shown. In the end all clients know those that they may
// read.
func TestRandom(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) { randomly(t, seed) })
	}
}

// shown is what a client has been shown, up to a resourceVersion.
type shown struct {
	rv    uint64
	names []string
	open  *Seen
}

func randomly(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	u := newUpstream("a", "b", "c", "d")
	b := NewBook()
	g := u.of(b, Key{})
	clients := make([]shown, 4)
	for step := range 400 {
		c := &clients[r.IntN(len(clients))]
		switch r.IntN(7) {
		case 0:
			u.grant(r.IntN(2) == 0, both, u.objects[r.IntN(len(u.objects))])
		case 1:
			u.newest += uint64(r.IntN(3))
		case 2:
			time.Sleep(time.Duration(r.IntN(int(denyTTL))))
		case 3: // lists
			seen := settle(t, g, u.query(false, u.newest))
			*c = shown{u.newest, seen.Namespaces, nil}
		case 4: // watches, or resumes
			if c.open != nil || c.rv == 0 {
				break
			}
			seen := settle(t, g, u.query(true, u.newest+1))
			if c.rv < seen.Since {
				*c = shown{} // it lists again
				break
			}
			if !slices.Equal(c.names, g.list.now.Load().names) {
				t.Fatalf("seed %d, step %d: a client that was shown %v goes on from %d, with %v", seed, step, c.names, c.rv, g.list.now.Load().names)
			}
			c.open = &seen
		case 5: // gets events
			if c.open == nil {
				break
			}
			if c.open.Changed() {
				*c = shown{}
			} else {
				c.rv = u.newest
			}
		case 6: // loses its connection, or the proxy its grants
			if c.open = nil; r.IntN(10) == 0 {
				b.mu.Lock()
				b.dropLocked(g)
				b.mu.Unlock()
				g = u.of(b, Key{})
			}
		}
	}
	time.Sleep(allowTTL)
	u.newest += 5
	for i := range clients {
		for range 2 { // the second one finds nothing new
			c := &clients[i]
			seen := settle(t, g, u.query(true, u.newest+1))
			if c.open == nil && c.rv >= seen.Since {
				c.open = &seen
			}
			if c.open == nil || c.open.Changed() {
				list := settle(t, g, u.query(false, u.newest))
				u.newest += 5
				seen := settle(t, g, u.query(true, u.newest))
				*c = shown{u.newest, list.Namespaces, &seen}
			}
			for _, name := range u.objects {
				may := slices.Contains(c.names, name) && slices.Contains(c.open.Namespaces, name)
				if may != u.rights["list "+name] {
					t.Fatalf("seed %d: client %d may see %s: %v, but has %v and watches %v", seed, i, name, !may, c.names, c.open.Namespaces)
				}
			}
		}
	}
}
