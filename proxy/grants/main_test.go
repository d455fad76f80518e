package grants

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	allowTTL = time.Minute
	denyTTL  = 10 * time.Second
)

var errBroken = errors.New("broken")

// upstream is a Reviewer: what an apiserver would say, and the state of a cache.
type upstream struct {
	mu      sync.Mutex
	rights  map[string]bool // by namespace; that of "" is the right to all
	objects []string        // namespaces with objects
	asked   map[string]int
	err     func(namespace string) error
	delay   time.Duration
}

func newUpstream(objects ...string) *upstream {
	return &upstream{rights: map[string]bool{}, objects: objects, asked: map[string]int{}}
}

func (u *upstream) grant(allowed bool, namespaces ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range namespaces {
		u.rights[n] = allowed
	}
}

// Review implements Reviewer. It remembers nothing.
func (u *upstream) Review(ctx context.Context, namespace string) (a Answer, err error) {
	u.mu.Lock()
	u.asked[namespace]++
	allowed, delay, fails := u.rights[namespace], u.delay, u.err
	u.mu.Unlock()
	began := time.Now()
	select {
	case <-ctx.Done():
		return a, ctx.Err()
	case <-time.After(delay):
	}
	if fails != nil {
		err = fails(namespace)
	}
	ttl := denyTTL
	if allowed {
		ttl = allowTTL
	}
	return Answer{allowed, began.Add(ttl)}, err
}

// Namespaces implements Reviewer.
func (u *upstream) Namespaces() iter.Seq[string] {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Values(slices.Sorted(slices.Values(u.objects)))
}

// DenyTTL implements Reviewer.
func (u *upstream) DenyTTL() time.Duration { return denyTTL }

// becomes changes the objects or the delay.
func (u *upstream) becomes(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change()
}

// fails makes the reviews of some namespaces fail, or none.
func (u *upstream) fails(namespaces ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = func(namespace string) error {
		if slices.Contains(namespaces, namespace) {
			return errBroken
		}
		return nil
	}
}

// count returns the number of reviews since the last call.
func (u *upstream) count() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, asked := range u.asked {
		n += asked
	}
	clear(u.asked)
	return n
}

// watcher is an open watch.
type watcher struct {
	*Watch
	woken  atomic.Int64
	closed bool
}

func (w *watcher) close() {
	if !w.closed {
		w.closed = true
		w.Close()
	}
}

// opens opens a watch that shows some namespaces at its beginning.
func (u *upstream) opens(t *testing.T, s *Eras, k Key, want ...string) *watcher {
	t.Helper()
	w, err := s.Open(t.Context(), k, u, slices.Collect(u.Namespaces()))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.Namespaces(), want) {
		t.Errorf("a watch shows %v, want %v", w.Namespaces(), want)
	}
	counted := &watcher{Watch: w}
	t.Cleanup(counted.close)
	w.Notify(wakes(func() { counted.woken.Add(1) }))
	return counted
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = string([]byte{'n', byte('0' + i/1000%10), byte('0' + i/100%10), byte('0' + i/10%10), byte('0' + i%10)})
	}
	return names
}

const allowed, denied, unknown = "allowed", "denied", "unknown"

// said returns the decision on a namespace.
func (e *era) said(namespace string) string {
	switch selected, known := e.Decide(namespace); {
	case !known:
		return unknown
	case selected:
		return allowed
	}
	return denied
}

// wakes is a Waker.
type wakes func()

func (w wakes) Wake() { w() }
