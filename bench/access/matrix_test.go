package access

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// These are the numbers of cells that are asked concurrently. A watch waits for a second and does
// almost no work. If watches start before the cache's history, a proxy with empty caches forwards
// at most 32 of them at a time.
const (
	askers       = 8
	watchers     = 96
	coldWatchers = 24
)

// cell is one question of the matrix.
type cell struct {
	caller *caller
	read   read
}

func (c cell) String() string {
	return fmt.Sprintf("%s: %s: %s", c.caller.name, c.read.name, c.read.target)
}

// tally counts cells by their results.
type tally struct {
	cells  atomic.Int64
	wrong  atomic.Int64
	cached atomic.Int64 // answers that only the cache gives
	mu     struct {
		sync.Mutex
		statuses map[*caller]map[int]int
	}
}

// Every caller gets the same answer as from the apiserver, with full and with empty caches.
func TestMatrix(t *testing.T) {
	w := sharedWorld(t)
	hot := openFront(t)
	all := collections()
	hot.warm(t, w.callers["admin"], all)
	since, err := w.newest(t.Context())
	cluster.MustT(t, err)
	for _, c := range all {
		first := w.server.must(t, w.callers["admin"], request{target: c.path + "?limit=1"})
		list := &metav1.PartialObjectMetadataList{}
		decode(t, first, list)
		if c.token = list.Continue; c.token == "" {
			t.Fatalf("%s is a single page", c.path)
		}
	}
	cluster.MustT(t, w.churn(t.Context()))
	reads := oddReads()
	for _, c := range all {
		reads = append(reads, c.reads(since)...)
	}
	t.Run("hot", func(t *testing.T) {
		count := &tally{}
		var cells, uncached []cell
		for _, c := range w.callers {
			if c.uncached {
				uncached = append(uncached, c.cells(reads, true)...)
			} else {
				cells = append(cells, c.cells(reads, true)...)
			}
		}
		before := hot.fromCache(t)
		w.check(t, hot, uncached, watchers, count)
		if after := hot.fromCache(t); after != before {
			t.Errorf("%d answers that only the apiserver may give came from the cache", after-before)
		}
		w.check(t, hot, cells, watchers, count)
		cached, least := hot.fromCache(t)-before, int(count.cached.Load())
		t.Logf("%d cells; %d answers came from the cache, which had to give %d", count.cells.Load(), cached, least)
		if cached < least {
			t.Errorf("only %d of %d answers came from the cache", cached, least)
		}
		for c, statuses := range count.mu.statuses {
			for _, status := range []int{missing, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable} {
				delete(statuses, status) // these statuses come after the decision
			}
			if got := slices.Sorted(maps.Keys(statuses)); !slices.Equal(got, c.answers) {
				t.Errorf("%s: the apiserver answers %v, which is not what the test means", c.name, statuses)
			}
		}
	})
	var scoped []cell
	for _, c := range slices.SortedFunc(maps.Values(w.callers), func(a, b *caller) int { return strings.Compare(a.name, b.name) }) {
		scoped = append(scoped, c.cells(reads, true)...)
		if c.hotOnly {
			continue
		}
		t.Run("cold/"+c.name, func(t *testing.T) {
			t.Parallel()
			count := &tally{}
			w.check(t, w.front(t, proxyUser, withAnonymous), c.cells(reads, false), coldWatchers, count)
			t.Logf("%d cells", count.cells.Load())
		})
	}
	t.Run("scoped", func(t *testing.T) {
		t.Parallel()
		count := &tally{}
		f := w.front(t, proxyUser, withAnonymous+scopes)
		w.check(t, f, scoped, coldWatchers, count)
		cached := f.fromCache(t)
		t.Logf("%d cells; %d answers came from the cache", count.cells.Load(), cached)
		if cached == 0 {
			t.Error("no answer came from the cache")
		}
	})
}

// scopes are caches of a namespace and of a node. Their proxy forwards whatever another namespace or
// node could be part of.
const scopes = "cache: {scopes: [{namespaces: [" + teamA + "]}, {resources: [pods], fieldSelector: spec.nodeName=n1}]}\n"

// warm fills the caches of the given collections, in both encodings.
func (f *front) warm(t *testing.T, as *caller, all []*collection) {
	t.Helper()
	for _, c := range all {
		for _, accept := range []string{"application/json", protobuf + ",application/json"} {
			if a := f.must(t, as, request{target: c.path + "?resourceVersion=0", accept: accept}); a.status != ok {
				t.Fatalf("%s: %d %s", c.path, a.status, a.body)
			}
		}
	}
}

// cells returns a caller's questions, with random protocols and forms. With all, each read is asked
// in JSON, and a third of the reads also in another form. Otherwise each read is asked in one form.
// Without -everything, only every eighth question is asked, fewer for callers that always get the same
// answer, and one that the apiserver allows.
func (c *caller) cells(reads []read, all bool) (cells []cell) {
	part := 8
	if c.hotOnly && len(c.answers) == 1 {
		part = 16
	}
	if c.probe != "" {
		cells = append(cells, cell{c, read{name: "probe", request: request{target: c.probe}}})
	}
	for i, r := range reads {
		key := fmt.Sprint(c.name, i) // targets contain resourceVersions, which are others in each run
		draw := func(n int, of string) int { return cluster.Draw(n, key, of) }
		if !drawn(part, key) || !all && r.watches && draw(3, "cold") != 0 {
			continue
		}
		r.protocol = cluster.DrawProtocol(key)
		if all || i%2 == 0 {
			cells = append(cells, cell{c, r})
		}
		if !all && i%2 == 1 || all && drawn(3, key, "another") {
			cells = append(cells, cell{c, r.in(forms[draw(len(forms), "form")])})
		}
	}
	return cells
}

// check asks the questions of all cells.
func (w *world) check(t *testing.T, f *front, cells []cell, watching int, count *tally) {
	t.Helper()
	var both sync.WaitGroup
	for watches, atOnce := range map[bool]int{false: askers, true: watching} {
		some := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.read.watches != watches })
		both.Go(func() {
			_ = workload.Parallel(t.Context(), len(some), atOnce, func(ctx context.Context, i int) error {
				const shown = 20
				switch err := w.settle(ctx, t, f, some[i], count); {
				case err == nil:
				case count.wrong.Add(1) <= shown:
					t.Errorf("%v\n%v", some[i], err)
				default:
					t.Fail()
				}
				return nil
			})
		})
	}
	both.Wait()
}

// alwaysCached are the reads that a full cache answers itself, whatever else happens.
var alwaysCached = []string{"get", "list at 0", "list at N", "watch at N", "watch with state", "watch with state at N"}

// settle asks the question of one cell, and returns how the answers differ. On a busy machine, the two servers
// may show different events within a second, and an object may be renewed between the two lists. So it waits
// until two allowed answers are the same. A difference in the decision itself counts immediately. After the
// first cell that has differed, no cell waits.
func (w *world) settle(ctx context.Context, t *testing.T, f *front, c cell, count *tally) (err error) {
	t.Helper()
	const pause = 100 * time.Millisecond
	var want, got answer
	for end := time.Now().Add(limit); ; cluster.Pause(ctx, pause) {
		var unknown, failed error
		var both sync.WaitGroup
		both.Go(func() { want, unknown = w.server.ask(ctx, c.caller, c.read.request) })
		both.Go(func() { got, failed = f.ask(ctx, c.caller, c.read.request) })
		both.Wait()
		if err = cmp.Or(unknown, failed); err == nil {
			err = compare(want, got)
		}
		if err == nil || unknown == nil && want.status != got.status || t.Failed() || time.Now().After(end) {
			break
		}
	}
	count.cells.Add(1)
	if name, _, _ := strings.Cut(c.read.name, ","); want.status == ok && !c.caller.uncached && slices.Contains(alwaysCached, name) {
		count.cached.Add(1)
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	of := count.mu.statuses
	if of == nil {
		of = map[*caller]map[int]int{}
		count.mu.statuses = of
	}
	if of[c.caller] == nil {
		of[c.caller] = map[int]int{}
	}
	of[c.caller][want.status]++
	return err
}
