package allowed

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// While rights and objects change, watches show what their users may read.
func TestWalk(t *testing.T) {
	t.Parallel()
	runWalk(t, size{users: 4, namespaces: 16, changes: 100, stops: 1, pause: 10 * time.Millisecond, prefix: "w-", settings: short})
}

// size is the size of a walk.
type size struct {
	users, namespaces int
	changes           int // of rights
	stops             int // for comparisons
	pause             time.Duration
	prefix            string // of namespaces and users
	settings          string // of the proxy
}

// walk changes rights and objects at random.
type walk struct {
	*world
	size
	t          *testing.T
	proxy      *proxy
	random     *rand.Rand
	namespaces []string
	of         map[string]string          // marks
	objects    map[string]map[string]bool // by namespace
	made       int
	ledger     ledger
	users      []caller
	followers  map[string][]follower
	plains     []*plain
	running    sync.WaitGroup
	steps      struct{ given, removed, first, last, written int }

	complaints struct {
		sync.Mutex
		n int
	}
}

func runWalk(t *testing.T, s size) {
	t.Helper()
	w := &walk{
		world: sharedWorld(t), size: s, t: t, random: rand.New(rand.NewPCG(cluster.Seed(), 2)), followers: map[string][]follower{},
		of: map[string]string{}, objects: map[string]map[string]bool{},
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer w.running.Wait()
	defer cancel()
	w.namespaces = spread(w.random, s.namespaces, s.prefix)
	for _, n := range w.namespaces {
		mark, err := w.namespace(ctx, n)
		must(err)
		w.of[n], w.objects[n] = mark, map[string]bool{}
		if w.random.IntN(3) > 0 {
			must(w.write(ctx, n))
		}
	}
	w.proxy = w.proxyT(t, w.server.URL, s.settings)
	for i := range s.users {
		w.users = append(w.users, user(fmt.Sprintf("%swalker%d", s.prefix, i)))
		w.start(ctx, t, w.users[i])
	}
	for i := range s.changes {
		must(w.change(ctx))
		for range w.random.IntN(3) {
			must(w.write(ctx, pick(w.random, w.namespaces...)))
		}
		cluster.Pause(ctx, w.pause)
		switch {
		case (i+1)%(s.changes/s.stops) == 0:
			must(w.compare(ctx))
		case i%10 == 0:
			must(w.settled(ctx))
			w.ledger.settle()
		}
	}
	// Now each namespace gets an object. The watches of those who may not read it stay silent.
	closed := w.ledger.closed()
	for _, n := range w.namespaces {
		must(w.write(ctx, n))
	}
	must(w.compare(ctx))
	errs, ends := 0, 0
	for _, p := range w.plains {
		p.mu.Lock()
		errs, ends = errs+p.errors, ends+p.ends
		p.mu.Unlock()
	}
	t.Logf("%+v; watches ended %d times with an ERROR, %d times without; at last %d rights were closed", w.steps, errs, ends, closed)
	if s := w.steps; min(s.given, s.removed) < w.changes/4 || min(s.first, s.last) == 0 || errs < len(w.users) || closed < len(w.users) {
		t.Error("the test does not test")
	}
}

// change gives or takes a right.
func (w *walk) change(ctx context.Context) error {
	r := right{pick(w.random, w.users...).name, pick(w.random, w.namespaces...)}
	if w.ledger.has(r) {
		w.steps.removed++
		err := w.unbind(ctx, r.namespace, "configs", r.user)
		w.ledger.revoke(r)
		return err
	}
	w.steps.given++
	w.ledger.grant(r)
	return w.bind(ctx, r.namespace, "configs", cluster.Users(r.user)...)
}

// write creates, changes or deletes an object.
func (w *walk) write(ctx context.Context, namespace string) (err error) {
	w.steps.written++
	objects := w.objects[namespace]
	var one string
	for name := range objects { // any
		if one == "" || name < one {
			one = name
		}
	}
	switch at := w.random.IntN(5); {
	case one == "" || at < 2 && len(objects) < 4:
		if one == "" {
			w.steps.first++
		}
		w.made++
		name := fmt.Sprintf("o-%s-%d", w.of[namespace], w.made)
		objects[name] = true
		return w.create(ctx, configmaps, namespace, object(configmaps, name, "web", w.of[namespace]))
	case at == 2:
		patch := fmt.Appendf(nil, `{"data":{"n":"%d of %s"}}`, w.steps.written, w.of[namespace])
		_, err = w.dynamic.Resource(configmaps.GroupVersionResource).Namespace(namespace).Patch(ctx, one, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	default:
		if delete(objects, one); len(objects) == 0 {
			w.steps.last++
		}
		return w.remove(ctx, configmaps, namespace, one)
	}
}

// compare waits until all followers have what their users may read. Then no watch may show any more
// what its user may not read.
func (w *walk) compare(ctx context.Context) error {
	w.t.Helper()
	if err := w.settled(ctx); err != nil {
		return err
	}
	w.ledger.settle()
	all, _, err := listed(ctx, w.api, w.adminCaller(), cluster.Get(configmaps.path("")))
	if err != nil {
		return err
	}
	populated, began := map[string]bool{}, time.Now()
	for _, c := range w.users {
		want := map[string]string{}
		for key, rv := range versions(all) {
			namespace, _, _ := strings.Cut(key, "/")
			populated[namespace] = true
			if w.ledger.has(right{c.name, namespace}) {
				want[key] = rv
			}
		}
		for _, f := range w.followers[c.name] {
			for end := time.Now().Add(cluster.Limit); !maps.Equal(f.has(), want); cluster.Pause(ctx, 20*time.Millisecond) {
				if time.Now().After(end) {
					w.t.Fatalf("%v has\n%v\ninstead of\n%v", f, f.has(), want)
				}
			}
		}
	}
	w.t.Logf("all have what they may read after %v", time.Since(began).Round(time.Millisecond))
	w.ledger.close(populated)
	return nil
}

// look checks an answer for objects that a user may not read.
func (w *walk) look(c caller, name string, a cluster.Answer) {
	for namespace := range w.marks.shown(a) {
		if !w.ledger.mayShow(right{c.name, namespace}) {
			w.complain("%s shows %s: %.300s", name, namespace, a.Body)
		}
	}
}

// complain fails the test.
func (w *walk) complain(format string, args ...any) {
	w.complaints.Lock()
	defer w.complaints.Unlock()
	const most = 5
	if w.complaints.n++; w.complaints.n <= most {
		w.t.Errorf(format, args...)
	}
	w.t.Fail()
}
