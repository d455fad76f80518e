package grants

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// All watches of an era end when a look, the next watch or an event finds that a decision has changed. The next
// watch shows what the user may read now.
func TestChanges(t *testing.T) {
	grants := func(u *upstream) { u.grant(true, "b") }
	revokes := func(u *upstream) { u.grant(false, "a") }
	looks := func(*upstream, *Eras, *watcher) { time.Sleep(2 * denyTTL) }
	opens := func(ttl time.Duration) func(*upstream, *Eras, *watcher) {
		return func(u *upstream, s *Eras, _ *watcher) {
			s.looks.SetBurst(0) // so that no look finds it
			time.Sleep(ttl)
			w, err := s.Open(context.Background(), Key{}, u, []string{"a", "b"})
			if err == nil {
				defer w.Close()
			}
		}
	}
	for name, test := range map[string]struct {
		change func(u *upstream)
		finds  func(u *upstream, s *Eras, w *watcher)
		shows  []string
	}{
		"a grant, by a look":              {grants, looks, []string{"a", "b"}},
		"a revocation, by a look":         {revokes, looks, nil},
		"a grant, by the next watch":      {grants, opens(denyTTL), []string{"a", "b"}},
		"a revocation, by the next watch": {revokes, opens(allowTTL), nil},
		"a revocation, by an event": {func(u *upstream) { u.fails("a") }, func(u *upstream, _ *Eras, w *watcher) {
			time.Sleep(allowTTL)
			revokes(u)
			u.fails()
			w.Ask("a")
		}, nil},
		"a grant without objects, by a look": {func(u *upstream) {
			u.becomes(func() { u.objects = []string{"a"} })
			grants(u)
		}, looks, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream("a", "b")
				u.grant(true, "a")
				s := NewEras()
				one, two := u.opens(t, s, Key{}, "a"), u.opens(t, s, Key{}, "a")
				time.Sleep(10 * allowTTL)
				if one.Over() || one.woken.Load() > 0 {
					t.Fatalf("nothing has changed: over %t, woken %d times", one.Over(), one.woken.Load())
				}
				test.change(u)
				test.finds(u, s, one)
				synctest.Wait()
				for _, w := range []*watcher{one, two} {
					if !w.Over() || w.woken.Load() == 0 {
						t.Errorf("over %t, woken %d times", w.Over(), w.woken.Load())
					}
				}
				u.opens(t, s, Key{}, test.shows...)
			})
		})
	}
}

// Watches that begin together ask once.
func TestBeginningsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := numbered(20)
		u := newUpstream(names...)
		u.delay = time.Second
		s := NewEras()
		const watches = 50
		opened := make(chan *watcher)
		for range watches {
			go func() { opened <- u.opens(t, s, Key{}) }()
		}
		for range watches {
			<-opened
		}
		if n := u.count(); n != len(names) {
			t.Errorf("%d questions about %d namespaces", n, len(names))
		}
	})
}

// The decisions of other users, or on other resources of a view of namespaces, belong to other eras.
func TestQuestions(t *testing.T) {
	of := func(u user.Info, resources ...string) *Narrowing {
		t.Helper()
		view := &exchange.View{Name: "v"}
		for _, r := range resources {
			view.Resources = append(view.Resources, schema.GroupResource{Resource: r})
		}
		route := exchange.Route{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Verb: "watch"}
		n, err := New(Config{View: view, Asked: exchange.Asked{Route: route}, User: u, Watch: true})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	alice := &user.DefaultInfo{Name: "alice", Groups: []string{"dev"}}
	n := of(alice, "pods")
	if n.key != of(alice, "pods").key || n.key == of(alice, "pods", "secrets").key {
		t.Error("eras are shared by views with other resources, or not by equal ones")
	}
	for _, other := range []user.Info{
		&user.DefaultInfo{Name: "bob", Groups: []string{"dev"}},
		&user.DefaultInfo{Name: "alice", Groups: []string{"dev", "ops"}},
		&user.DefaultInfo{Name: "alice", Groups: []string{"dev"}, Extra: map[string][]string{"scopes": {"few"}}},
	} {
		if n.isOf(other) || n.key == of(other, "pods").key {
			t.Errorf("%v counts as alice", other)
		}
	}
	if !n.isOf(&user.DefaultInfo{Name: "alice", Groups: []string{"dev"}}) {
		t.Error("alice is not herself")
	}
}

// While a slow beginning waits for its reviews, a namespace may be revoked. It does not bring back the old
// decision.
func TestSlowBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("b")
		u.grant(true, "a", "b")
		s := NewEras()
		w := u.opens(t, s, Key{}, "b")
		u.becomes(func() { u.objects, u.delay = []string{"a", "b"}, 20*time.Second })
		opened := make(chan *watcher)
		go func() { opened <- u.opens(t, s, Key{}, "b") }()
		time.Sleep(time.Second)
		u.becomes(func() { u.delay = 0 })
		u.grant(false, "a")
		w.Ask("a")
		synctest.Wait()
		late := <-opened
		if d := late.era.said("a"); d != denied || late.Over() || !w.Over() {
			t.Errorf("a slow beginning decides %v, over %t; the earlier watch over %t", d, late.Over(), w.Over())
		}
	})
}

// A watch asks for the decision on a namespace whose first object it comes to. So nothing ends.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a")
		u.grant(true, "a", "b")
		s := NewEras()
		w, other := u.opens(t, s, Key{}, "a"), u.opens(t, s, Key{}, "a")
		for name, want := range map[string]string{"b": allowed, "c": denied} {
			u.becomes(func() { u.objects = append(u.objects, name) })
			w.woken.Store(0)
			if d := w.era.said(name); d != unknown {
				t.Fatalf("%s: %v before the question", name, d)
			}
			w.Ask(name)
			synctest.Wait()
			if d := other.era.said(name); d != want || w.woken.Load() != 1 || other.woken.Load() != 0 {
				t.Errorf("%s: %v; the watch is woken %d times, another one %d times", name, d, w.woken.Load(), other.woken.Load())
			}
		}
		time.Sleep(10 * allowTTL)
		if w.Over() {
			t.Error("the watch is over")
		}
	})
}

// Without an answer, a watch stays where it is. It gets on as soon as there is one.
func TestAskWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a")
		u.grant(true, "a")
		w := u.opens(t, NewEras(), Key{}, "a")
		w.Notify(wakes(func() {
			w.woken.Add(1)
			if w.era.said("a") == unknown {
				go w.Ask("a") // as the watch does in its own goroutine
			}
		}))
		u.fails("a")
		time.Sleep(allowTTL)
		if d := w.era.said("a"); d != unknown {
			t.Fatalf("%v after the time of the decision", d)
		}
		w.Ask("a")
		const waits = 30
		time.Sleep(waits * retryPause)
		if n := w.woken.Load(); w.Over() || n < waits-1 || n > waits+1 {
			t.Errorf("over %t, woken %d times in %d s", w.Over(), n, waits)
		}
		u.fails()
		time.Sleep(2 * retryPause)
		if d := w.era.said("a"); d != allowed || w.Over() {
			t.Errorf("%v, over %t", d, w.Over())
		}
	})
}

// Namespaces come and go. An era ends before it knows many that have gone.
func TestOldEras(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a")
		u.grant(true, "a")
		s := NewEras()
		w := u.opens(t, s, Key{}, "a")
		var known int
		const step = 50
		for names := range slices.Chunk(numbered(2*goneMost), step) {
			for _, name := range names {
				w.Ask(name)
			}
			time.Sleep(denyTTL)
			synctest.Wait()
			if w.Over() {
				break
			}
			known = s.mu.known - eraCost
		}
		if !w.Over() || known < goneMost || known > goneMost+2*step || s.mu.known != 0 {
			t.Errorf("over %t after %d decisions; %d are counted", w.Over(), known, s.mu.known)
		}
		u.opens(t, s, Key{}, "a")
	})
}

// The state of a slow client is shown as long as its namespaces are allowed.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, "a", "b")
		w := u.opens(t, NewEras(), Key{}, "a", "b")
		for range 5 {
			if err := w.Renew(t.Context()); err != nil || w.Expired() {
				t.Fatalf("expired %t: %v", w.Expired(), err)
			}
			time.Sleep(allowTTL)
		}
		u.fails("b")
		time.Sleep(allowTTL)
		if err := w.Renew(t.Context()); !errors.Is(err, ErrUnreviewed) || !errors.Is(err, errBroken) {
			t.Errorf("without a review: %v", err)
		}
		u.fails()
		u.grant(false, "b")
		if err := w.Renew(t.Context()); !errors.Is(err, ErrChanged) {
			t.Errorf("after the revocation: %v", err)
		}
	})
}
