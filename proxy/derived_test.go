package proxy

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// What is made of pages is made once for each page that an update replaces, and for the one behind it, which refers to
// it, however long updates go on and however much of the budget hangs on pages that are gone.
func TestChurnCostsOneMakeEach(t *testing.T) {
	const (
		objects = 5000
		steps   = 400
		size    = 1000 // bytes of a piece
	)
	resource := object.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Kind: "Node"}
	makeObject := func(i, rv int) *object.Object {
		o, err := resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"n-%06d","uid":"u","resourceVersion":"%d"}}`, i, rv))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	var all []*object.Object
	for i := range objects {
		all = append(all, makeObject(i, i+1))
	}
	cache := watchcache.New(resource, watchcache.Limits{Events: 10})
	cache.Reset(all, objects)
	live := 0
	makes := 0
	d := NewDerived(1<<20, prometheus.NewRegistry()) // several times what is live
	readAll := func() {
		snapshot, err := cache.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		live = 0
		var behind watchcache.Span
		for span := range snapshot.Spans("", "") {
			v := variant{gzip: true, behind: behind}
			if _, err := d.get(&meter{}, span, v, func() (context, plain []byte, err error) {
				makes++
				return nil, bytes.Repeat([]byte("x"), size), nil
			}); err != nil {
				t.Fatal(err)
			}
			behind = span
			live++
		}
	}
	readAll()
	if makes != live {
		t.Fatalf("%d made of %d pages", makes, live)
	}
	makes = 0
	for step := range steps {
		rv := objects + step + 1
		if err := cache.Apply([]watchcache.Change{{Object: makeObject(step*37%objects, rv)}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			readAll()
		}
	}
	if makes > 2*steps {
		t.Errorf("%d updates cost %d makes", steps, makes)
	}
	if d.mu.cost > d.mu.limit || len(d.mu.entries) != d.mu.recent.Len() {
		t.Errorf("%d of %d bytes, %d entries of %d", d.mu.cost, d.mu.limit, len(d.mu.entries), d.mu.recent.Len())
	}
}

// A budget that holds nothing, or not everything, changes no answer.
func TestDerivedWithinBudget(t *testing.T) {
	d := NewDerived(2000, prometheus.NewRegistry())
	page := func() watchcache.Span { return watchcache.Span{Page: &watchcache.Page{}} }
	for i := range 10 {
		want := bytes.Repeat([]byte{byte(i)}, i*300)
		p, err := d.get(&meter{}, page(), variant{first: i%2 == 0, form: formID(i)}, func() (_, plain []byte, err error) { return nil, want, nil })
		if err != nil || !bytes.Equal(p.plain, want) {
			t.Fatalf("%d: %d bytes, %v", i, len(p.plain), err)
		}
		if d.mu.cost > d.mu.limit {
			t.Fatalf("%d bytes are kept", d.mu.cost)
		}
	}
	if _, err := d.get(&meter{}, page(), variant{object: true}, func() (_, _ []byte, err error) { return nil, nil, errForward }); err == nil {
		t.Error("an error is taken for a piece")
	}
}

// A herd that waits for turns makes each piece once, even if nothing is kept.
func TestHerdMakesEachPieceOnce(t *testing.T) {
	const herd = 20
	slots := newFairQueue(1, 1, 1<<20)
	registry := prometheus.NewRegistry()
	derived := NewDerived(1, registry) // keeps nothing
	r, snapshot := pageOf(t, 5000, 0)
	from, to := r.filter.KeyRange(r.resource)
	if err := slots.take(t.Context(), claim{user: "other", size: 1}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	pieces := make([]*piece, herd)
	for i := range herd {
		m := &meter{slots: slots, req: &request{}, ctx: t.Context()}
		all.Go(func() {
			for span := range snapshot.Spans(from, to) {
				p, err := derived.get(m, span, variant{form: partialJSONForm}, func() (_, plain []byte, err error) {
					return nil, make([]byte, 100), nil
				})
				if err != nil {
					t.Error(err)
				}
				pieces[i] = p
				m.rest()
				return
			}
		})
	}
	waitFor(t, "all wait", func() bool { return waitersOf(slots) == herd })
	slots.give("other", 1)
	all.Wait()
	if n := testutil.ToFloat64(derived.misses); n != 1 {
		t.Errorf("%v are made", n)
	}
	runtime.KeepAlive(pieces)
}
