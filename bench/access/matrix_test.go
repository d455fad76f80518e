package access

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
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
	cells, cacheable atomic.Int64
	mu               struct {
		sync.Mutex
		statuses map[*caller]map[int]int
		broken   map[*caller]int
	}
}

// Every caller gets the same answer as from the apiserver, with full and with empty caches.
func TestMatrix(t *testing.T) {
	w := sharedWorld(t)
	hot := w.front(t, proxyUser, withAnonymous)
	all := collections()
	hot.warm(t, w.callers["admin"], all)
	since, err := w.newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		first := w.server.must(t, w.callers["admin"], request{target: c.path + "?limit=1"})
		list := &metav1.PartialObjectMetadataList{}
		decode(t, first, list)
		if c.token = list.Continue; c.token == "" {
			t.Fatalf("%s is a single page", c.path)
		}
	}
	if err := w.churn(t.Context()); err != nil {
		t.Fatal(err)
	}
	reads := oddReads()
	for _, c := range all {
		reads = append(reads, c.reads(since)...)
	}
	t.Run("hot", func(t *testing.T) {
		count := &tally{}
		before := hot.fromCache(t)
		var cells []cell
		for _, c := range w.callers {
			cells = append(cells, c.cells(reads, true)...)
		}
		w.check(t, hot, cells, watchers, count)
		cached, cacheable := hot.fromCache(t)-before, int(count.cacheable.Load())
		t.Logf("%d cells; %d of %d answers that the cache may give came from it", count.cells.Load(), cached, cacheable)
		if !*self && cached < cacheable*3/4 {
			t.Errorf("only %d of %d answers came from the cache", cached, cacheable)
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
	for _, c := range slices.SortedFunc(maps.Values(w.callers), func(a, b *caller) int { return strings.Compare(a.name, b.name) }) {
		if c.part > 0 {
			continue
		}
		t.Run("cold/"+c.name, func(t *testing.T) {
			count := &tally{}
			w.check(t, w.front(t, proxyUser, withAnonymous), c.cells(reads, false), coldWatchers, count)
			t.Logf("%d cells", count.cells.Load())
		})
	}
}

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
// Without -everything, only every second question is asked, and fewer for callers that always get
// the same answer.
func (c *caller) cells(reads []read, all bool) (cells []cell) {
	for i, r := range reads {
		draw := func(n int, of string) int { return cluster.Draw(n, c.name, r.name, r.target, of) }
		if draw(max(2, c.part), "part") != 0 && !*everything || !all && r.watches && draw(3, "cold") != 0 {
			continue
		}
		r.protocol = cluster.DrawProtocol(c.name, r.name, r.target)
		if all || i%2 == 0 {
			cells = append(cells, cell{c, r})
		}
		if !all && i%2 == 1 || all && (draw(3, "another") == 0 || *everything) {
			cells = append(cells, cell{c, r.in(forms[draw(len(forms), "form")])})
		}
	}
	return cells
}

// check asks the questions of all cells.
func (w *world) check(t *testing.T, f *front, cells []cell, watching int, count *tally) {
	t.Helper()
	count.mu.statuses, count.mu.broken = map[*caller]map[int]int{}, map[*caller]int{}
	quick, slow := make(chan cell), make(chan cell)
	var workers sync.WaitGroup
	work := func(n int, from <-chan cell) {
		for range n {
			workers.Go(func() {
				for c := range from {
					w.settle(t, f, c, count)
				}
			})
		}
	}
	work(askers, quick)
	work(watching, slow)
	var feeders sync.WaitGroup
	feed := func(to chan<- cell, watches bool) {
		feeders.Go(func() {
			defer close(to)
			for _, c := range cells {
				if c.read.watches == watches {
					to <- c
				}
			}
		})
	}
	feed(quick, false)
	feed(slow, true)
	feeders.Wait()
	workers.Wait()
	for c, n := range count.mu.broken {
		t.Errorf("%s: %d cells differ", c.name, n)
	}
}

// settle asks the question of one cell. On a busy machine, the two servers may show different
// events within a second, and an object may be renewed between the two lists. So a difference
// between two allowed answers counts only if it repeats. A difference in the decision itself counts
// immediately.
func (w *world) settle(t *testing.T, f *front, c cell, count *tally) {
	const attempts, shown = 3, 3
	var want, got answer
	var err error
	for range attempts {
		var unknown error
		want, got, unknown, err = w.askBoth(t.Context(), f, c)
		if unknown != nil {
			err = unknown
			continue // without the apiserver's answer there is nothing to compare
		}
		if err == nil {
			err = compare(want, got)
		}
		if err == nil || want.status != got.status {
			break
		}
	}
	count.cells.Add(1)
	if want.status == ok && !c.caller.uncached && !c.read.uncached {
		count.cacheable.Add(1)
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	of := count.mu.statuses[c.caller]
	if of == nil {
		of = map[int]int{}
		count.mu.statuses[c.caller] = of
	}
	of[want.status]++
	if err == nil {
		return
	}
	if count.mu.broken[c.caller]++; count.mu.broken[c.caller] <= shown {
		t.Errorf("%v\n%v", c, err)
	} else {
		t.Fail()
	}
}

// askBoth asks both servers. It returns separate errors for the apiserver and the proxy.
func (w *world) askBoth(ctx context.Context, f *front, c cell) (want, got answer, wantErr, gotErr error) {
	var both sync.WaitGroup
	both.Go(func() { want, wantErr = w.server.ask(ctx, c.caller, c.read.request) })
	both.Go(func() { got, gotErr = f.ask(ctx, c.caller, c.read.request) })
	both.Wait()
	return want, got, wantErr, gotErr
}
