package watchcache_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// TestResumeAnywhere makes replicas lose their streams and relist at different times. It
// disconnects informers after arbitrary events. The informers resume from their last event, at any
// place. In the end, all of them must have upstream's state.
func TestResumeAnywhere(t *testing.T) {
	r := watchcache.Random(t)
	counts := map[string]int{}
	for i := range cachetest.Rounds(100, 500) {
		w := newWorld(t, r, counts)
		for range 250 {
			w.step()
		}
		w.finish()
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
	t.Logf("%v", counts)
	for _, what := range []string{"gap", "cut", "removal", "again", "refused", "told", "restart"} {
		if counts[what] == 0 {
			t.Errorf("%s never happened: test does not test", what)
		}
	}
}

// world contains upstream, replicas and informers.
type world struct {
	t         testing.TB
	r         *rand.Rand
	up        *upstream
	api       *apiserver
	replicas  []*replica
	informers []*informer
	counts    map[string]int
}

func newWorld(t testing.TB, r *rand.Rand, counts map[string]int) *world {
	t.Helper()
	w := &world{t: t, r: r, counts: counts, up: &upstream{r: r, rv: 100, single: true}}
	w.api = &apiserver{up: w.up}
	for range 20 {
		w.up.step()
	}
	for i := range 3 {
		limits := watchcache.Limits{Age: time.Minute, Events: watchcache.Pick(r, 0, 1000), Bytes: 8 << 20}
		replica := &replica{t: t, up: w.up, cache: watchcache.New(*watchcache.Pods, limits), now: watchcache.Noon, counts: counts}
		if i == 2 && r.IntN(2) == 0 {
			replica.of = w.replicas[0]
		}
		replica.reset()
		w.replicas = append(w.replicas, replica)
	}
	for _, s := range []*selection{
		newSelection(t, "", "", ""), newSelection(t, "a", "", ""), newSelection(t, "", "app=web", ""),
		newSelection(t, "", "app!=web", ""), newSelection(t, "", "", "spec.nodeName=n1"), randomSelection(t, r),
	} {
		w.informers = append(w.informers, &informer{world: w, selection: s})
	}
	return w
}

func (w *world) step() {
	w.t.Helper()
	replica := watchcache.Pick(w.r, w.replicas...)
	replica.now = replica.now.Add(time.Duration(w.r.IntN(100)) * time.Millisecond)
	switch n := w.r.IntN(200); {
	case n < 60:
		w.up.step()
	case n < 90:
		if !replica.lost {
			replica.follow(1 + w.r.IntN(6))
		}
	case n < 105:
		if replica.lost {
			replica.relist(max(replica.rv(), w.up.rv-w.r.Uint64N(4)))
		}
		replica.lost = !replica.lost
	case n < 107:
		rv := replica.rv() + w.r.Uint64N(w.up.rv-replica.rv()+1)
		if err := replica.cache.FastForward(w.up.at(rv).list(), rv); err != nil {
			w.t.Fatal(err)
		}
	case n < 109:
		replica.restart(w.up.rv - w.r.Uint64N(w.up.rv-max(w.api.compacted, 100)+1))
	case n < 110:
		replica.reset()
	case n < 111:
		w.api.compacted = w.up.rv - w.r.Uint64N(w.up.rv-100)
	default:
		watchcache.Pick(w.r, w.informers...).step(1 + w.r.IntN(5))
	}
}

// finish lets all replicas and informers catch up.
func (w *world) finish() {
	w.t.Helper()
	for range 2 { // a replica may follow a replica that comes later in the list
		for _, replica := range w.replicas {
			if replica.lost || w.r.IntN(4) == 0 {
				replica.relist(w.up.rv)
			}
			for replica.rv() < w.up.rv {
				replica.follow(100)
			}
		}
	}
	for _, i := range w.informers {
		for range 1000 {
			if i.step(5) {
				break
			}
		}
		if want, got := versions(i.selection.of(w.up.now)), versions(i.state); !maps.Equal(got, want) {
			w.t.Errorf("%v holds %v, upstream has %v:\n%s", i.selection, got, want, strings.Join(i.log, "\n"))
		}
		if i.connection != nil {
			i.connection.close()
		}
	}
}

// informer works like client-go's reflector: it resumes at the last event's resourceVersion.
type informer struct {
	world      *world
	selection  *selection
	connection connection
	state      map[string]*object.Object
	last       uint64
	log        []string
}

func (i *informer) note(format string, args ...any) {
	i.log = append(i.log, fmt.Sprintf(format, args...))
}

// somewhere returns a random place, like a load balancer.
func (i *informer) somewhere() place {
	w := i.world
	n := w.r.IntN(len(w.replicas) + 1)
	if n == len(w.replicas) {
		i.note("at upstream, at %d", w.up.rv)
		return w.api
	}
	stats := w.replicas[n].cache.Stats()
	i.note("at replica %d, since %d, at %d (%d)", n, stats.Since, stats.ResourceVersion, stats.Newest)
	return w.replicas[n]
}

// step reads once. It reports whether the informer has reached the end.
func (i *informer) step(limit int) (done bool) {
	w := i.world
	w.t.Helper()
	if i.connection == nil {
		i.connect()
		return false
	}
	deltas, bookmark, err := i.connection.poll(limit)
	if err != nil {
		i.note("%v", err)
		i.cut()
		if _, tooOld := errors.AsType[*watchcache.TooOldError](err); tooOld && w.r.IntN(4) > 0 {
			w.counts["told"]++
			i.relist() // otherwise the informer was disconnected before it saw the error
		}
		return false
	}
	for _, d := range deltas {
		if w.r.IntN(15) == 0 {
			w.counts["cut"]++
			i.cut()
			return false
		}
		i.take(d)
	}
	if bookmark > 0 && bookmark >= i.last && w.r.IntN(4) == 0 {
		i.last = bookmark
		i.note("bookmark %d", bookmark)
	}
	if len(deltas) == 0 && bookmark > 0 && bookmark < i.last {
		w.t.Errorf("%v: it stands at %d after %d", i.selection, bookmark, i.last)
	}
	return len(deltas) == 0 && bookmark >= w.up.rv
}

func (i *informer) take(d watchcache.Delta) {
	i.note("%s", show([]watchcache.Delta{d}))
	if d.RV < i.last || d.RV == i.last && d.Type != watchcache.Deleted {
		i.world.t.Errorf("%v: %s after %d:\n%s", i.selection, show([]watchcache.Delta{d}), i.last, strings.Join(i.log, "\n"))
	}
	key := d.Object.Key()
	if d.RV == i.last {
		i.world.counts["removal"]++
	}
	if _, ok := i.state[key]; ok == (d.Type == watchcache.Added) {
		i.world.counts["again"]++
	}
	if i.state[key] = d.Object; d.Type == watchcache.Deleted {
		delete(i.state, key)
	}
	i.last = d.RV
}

func (i *informer) cut() {
	i.connection.close()
	i.connection = nil
	i.note("cut at %d", i.last)
}

func (i *informer) connect() {
	if i.last == 0 {
		i.relist()
		return
	}
	if i.connection = i.somewhere().watch(i.selection, i.last); i.connection == nil {
		i.world.counts["refused"]++
		i.note("refused at %d", i.last)
		i.relist()
	}
}

func (i *informer) relist() {
	i.log = nil
	i.state, i.last = i.somewhere().list(i.selection)
	i.note("listed at %d: %v", i.last, versions(i.state))
}
