package derived

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// newStore returns a store for a test.
func newStore(tb testing.TB, limit int64) *Store {
	tb.Helper()
	d := New(limit, prometheus.NewRegistry())
	tb.Cleanup(d.Close)
	return d
}

// Each update makes two pieces: the piece of the new page, and the next piece, which refers to it.
// This does not change over time, even if the budget is only a little larger than the bytes that
// are read. When a collection is filled again, one piece is made for each page.
func TestChurnCostsOneMakeEach(t *testing.T) {
	for name, budget := range map[string]int64{"ample": 1 << 20, "tight": 180 << 10} {
		t.Run(name, func(t *testing.T) { churn(t, budget) })
	}
}

// churn reads 105 pages, whose pieces take some 170 kB, again and again while updates replace
// pages.
func churn(t *testing.T, budget int64) {
	const (
		objects = 5000
		size    = 1000 // bytes of a piece
	)
	steps := cachetest.Rounds(60, 150)
	c, snapshot := cachetest.ConfigMaps(t, objects)
	d := newStore(t, budget)
	live, makes := 0, 0
	random := rand.NewChaCha8([32]byte{})
	readAll := func(of watchcache.Snapshot) {
		live = 0
		var behind tree.Span
		for span := range of.Spans("", "") {
			v := Variant{Gzip: true, Behind: behind}
			if _, err := d.Get(&fair.Meter{}, span, v, func() (Made, error) {
				makes++
				plain := make([]byte, size)
				_, err := random.Read(plain)
				return Made{Plain: plain}, err
			}); err != nil {
				t.Fatal(err)
			}
			behind = span
			live++
		}
		if d.Cost() > budget {
			t.Errorf("%d of %d bytes", d.Cost(), budget)
		}
	}
	readAll(snapshot)
	if makes != live {
		t.Fatalf("%d made of %d pages", makes, live)
	}
	makes = 0
	for step := range steps {
		snapshot = update(t, c, step*37%objects, objects+step+2)
		for range 5 {
			readAll(snapshot)
		}
		if step%10 == 0 {
			runtime.GC() // drops shared pieces that are not kept
		}
	}
	if makes > 2*steps {
		t.Errorf("%d updates cost %d makes", steps, makes)
	}
	makes = 0
	again := watchcache.New(*c.Resource(), watchcache.Limits{})
	again.Writer().Reset(slices.Collect(snapshot.Objects("", "")), snapshot.ResourceVersion())
	snapshot = cachetest.Snapshot(t, again)
	for range 5 {
		readAll(snapshot)
		runtime.GC()
	}
	if makes != live {
		t.Errorf("%d made of %d pages that are read anew", makes, live)
	}
}

// Reads that wait for turns together make each piece once, even if the store keeps nothing.
func TestHerdMakesEachPieceOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const herd = 20
		slots := fair.NewPool(1, false)
		d := newStore(t, 1) // keeps nothing
		var makes atomic.Int64
		c, snapshot := cachetest.ConfigMaps(t, 5000)
		from, to := c.Resource().KeyRange("a")
		if err := slots.Take(t.Context(), "other", 1); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		pieces := make([]*Piece, herd)
		for i := range herd {
			m := fair.NewMeter(t.Context(), &exchange.Request{}, &fair.Slots{Short: slots, Long: slots}, false)
			_ = m.Spend(fair.Turn) // the next piece needs a slot
			all.Go(func() {
				for span := range snapshot.Spans(from, to) {
					p, err := d.Get(&m, span, Variant{Form: FormID{Choice: wire.Choice{Partial: true}}, Cost: 1}, func() (Made, error) {
						makes.Add(1)
						return Made{Plain: make([]byte, 100)}, nil
					})
					if err != nil {
						t.Error(err)
					}
					pieces[i] = p
					m.ReleaseSlot()
					return
				}
			})
		}
		synctest.Wait()
		if n := slots.Waiting(); n != herd {
			t.Fatalf("%d wait", n)
		}
		slots.Give("other", 1)
		all.Wait()
		if n := makes.Load(); n != 1 {
			t.Errorf("%d are made", n)
		}
		runtime.KeepAlive(pieces)
	})
}

// D3: readers of an old snapshot do not displace pieces of the newest snapshot.
func TestOldSnapshotsKeepNothing(t *testing.T) {
	c, before := cachetest.ConfigMaps(t, 10)
	d := newStore(t, 1<<20)
	after := update(t, c, 3, 100)
	makes := 0
	for i, step := range []struct {
		snapshot watchcache.Snapshot
		makes    int
	}{{before, 1}, {after, 2}, {before, 3}, {after, 3}} {
		makes += readPages(t, d, step.snapshot, Variant{})
		if makes != step.makes {
			t.Errorf("after step %d: %d are made, want %d", i, makes, step.makes)
		}
		runtime.GC() // drops shared pieces that are not kept
	}
}

// Pages change, old and new snapshots are read, and the limit changes. Each reader receives the
// requested piece (D1), or the error of its maker. The cost of the kept pieces equals the store's figure, and stays within the
// limit (D2).
func TestDerivedKeepsToTheLimit(t *testing.T) {
	seed := cachetest.Seed(t)
	const objects, rounds, updates, readers = 1000, 60, 10, 4
	c, snapshot := cachetest.ConfigMaps(t, objects)
	d := newStore(t, 1)
	page := tree.Span{Page: &tree.Page{}}
	if _, err := d.Get(&fair.Meter{}, page, Variant{}, func() (made Made, err error) { return made, io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("a piece that could not be made: %v", err)
	}
	snapshots := []watchcache.Snapshot{snapshot}
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		for i := range updates {
			snapshot = update(t, c, random.IntN(objects), objects+2+round*updates+i)
		}
		snapshots = append(snapshots, snapshot)
		var all sync.WaitGroup
		for i := range readers {
			of := snapshots[max(0, len(snapshots)-1-i)]
			v := Variant{Form: FormID{RowObjects: random.IntN(2) == 0}, First: random.IntN(2) == 0}
			all.Go(func() { readPages(t, d, of, v) })
		}
		limit := []int64{0, 10_000, 20_000, 1 << 20}[random.IntN(4)]
		d.SetLimit(limit)
		all.Wait()
		var held int64
		d.kept.IterValues(func(p *Piece) (stop bool) { held += p.cost(); return false })
		if held != d.Cost() || held > limit {
			t.Fatalf("round %d: %d bytes are held, the store says %d, the limit is %d", round, held, d.Cost(), limit)
		}
	}
}

// update replaces an object.
func update(t *testing.T, c *watchcache.Cache, i, rv int) watchcache.Snapshot {
	t.Helper()
	cachetest.Apply(t, c, cachetest.ConfigMap(t, i, rv))
	return cachetest.Snapshot(t, c)
}

// readPages gets a piece of each page, and checks that the piece was made from that page. It returns
// the number of pieces that it made.
func readPages(t *testing.T, d *Store, snapshot watchcache.Snapshot, v Variant) (makes int) {
	t.Helper()
	for span := range snapshot.Spans("", "") {
		want := bytes.Repeat(fmt.Append(nil, span.Page.ID(), v.Form, v.First), 20+20*int(span.Page.ID()%10))
		p, err := d.Get(&fair.Meter{}, span, v, func() (Made, error) {
			makes++
			return Made{Plain: want}, nil
		})
		if err != nil || !bytes.Equal(p.Plain, want) {
			t.Errorf("%d bytes instead of %d, %v", len(p.Plain), len(want), err)
		}
	}
	return makes
}
