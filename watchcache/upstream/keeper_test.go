package upstream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// withLedger switches the ledger on.
func withLedger(o *feed.Options) { o.Ledger = true }

// feedWithLedger returns a feed of a large quiet collection with a running ledger, while other
// resources are written.
func feedWithLedger(t *testing.T, f *fakeUpstream, change ...func(*feed.Options)) (*Feeds, *fresh.Feed) {
	t.Helper()
	fill(f, feed.SmallObjects+1)
	feeds := start(t, f, append(change, withLedger)...)
	feed := openFrom(t, feeds)
	for range 100 {
		f.other("leases")
		same(t, f, readFresh(t, f, feed))
		time.Sleep(100 * time.Millisecond)
	}
	if !feed.Ledger.Has(feed.Owner) {
		t.Fatal("no ledger")
	}
	return feeds, feed
}

// While other resources are written and watches show all these writes, a consistent read of a quiet
// collection costs one probe. A hole costs one side watch before a reader comes.
func TestFreshByTheLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, feed := feedWithLedger(t, f)
		helped := func() int { return f.count("list") + f.count("side-watch") }
		before := helped()
		for range 50 {
			f.other("leases")
			f.other("namespaces")
			synctest.Wait()
			began := time.Now()
			same(t, f, readFresh(t, f, feed))
			if took := time.Since(began); took > 0 {
				t.Errorf("a read waited for %s", took)
			}
		}
		if n := helped() - before; n != 0 {
			t.Errorf("upstream had to help %d times", n)
		}
		f.elsewhere()
		f.other("leases")
		time.Sleep(2 * time.Second)
		if n := helped() - before; n != 1 {
			t.Errorf("upstream had to help %d times over a hole, want once", n)
		}
		f.other("leases")
		synctest.Wait()
		same(t, f, readFresh(t, f, feed))
		if n := helped() - before; n != 1 {
			t.Errorf("upstream had to help %d times beyond a hole, want once", n)
		}
	})
}

// When a new era of the ledger has its evidence, upstream is asked for the state that the ledger
// needs for any proof, before a reader comes.
func TestLedgerInANewEra(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, feed := feedWithLedger(t, f)
		feed.Ledger.Forget() // simulates a broken ledger watch
		carries := func() bool {
			era, _ := feed.Ledger.Position(feed.Owner)
			return feed.Carries(era)
		}
		for range 20 {
			f.other("leases")
			time.Sleep(fresh.Every)
		}
		if !feed.Ledger.Has(feed.Owner) || !carries() {
			t.Errorf("there is evidence: %t, and a state: %t", feed.Ledger.Has(feed.Owner), carries())
		}
	})
}

// The ledger's watches end when no reader needs it.
func TestLedgerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, feed := feedWithLedger(t, f)
		time.Sleep(fresh.Needed + 2*fresh.Every)
		if feed.Ledger.Has(feed.Owner) {
			t.Error("it is kept for nobody")
		}
		before := f.count("ledger")
		time.Sleep(time.Hour)
		if n := f.count("ledger") - before; n != 0 {
			t.Errorf("%d more watches", n)
		}
	})
}

// The resource that is read gets its evidence first, even if there are many others. Each round of
// comparisons needs a write, and in a quiet cluster there are few.
func TestReadersDoNotWaitForOthersEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for i := range 50 {
			f.mu.more += fmt.Sprintf(`,{"name":"a%d","namespaced":true,"kind":"A","verbs":["get","list","watch"]}`, i)
		}
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f, withLedger)
		writes := 0
		for ; !feed.Ledger.Has(feed.Owner) && writes < 100; writes++ {
			f.other("leases")
			same(t, f, readFresh(t, f, feed))
			time.Sleep(2 * fresh.Every)
		}
		if most := 5 + ledger.EvidenceEnough; writes > most { // five readers start the ledger
			t.Errorf("evidence after %d writes, want %d at most", writes, most)
		}
	})
}

// Revisions of resources in another etcd prove nothing.
func TestResourcesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.mu.apart = map[string]uint64{"leases": 7}
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f, withLedger)
		for i := range 100 {
			f.other("namespaces")
			f.locked(func() { f.mu.apart["leases"] = uint64(7 + i) })
			same(t, f, readFresh(t, f, feed))
			time.Sleep(100 * time.Millisecond)
		}
		o := ledger.OwnerOf(schema.GroupResource{Resource: "leases"})
		if !feed.Ledger.Has(feed.Owner) || feed.Ledger.Has(o) {
			t.Errorf("configmaps are in the ledger: %t, leases: %t", feed.Ledger.Has(feed.Owner), feed.Ledger.Has(o))
		}
	})
}

// A read contains all earlier writes, in any case and with any order of watch events.
func TestLedgerIsSound(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range cachetest.Rounds(4, 20) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, uint64(round)))
				f := newFake()
				_, feed := feedWithLedger(t, f)
				for range 500 {
					switch random.IntN(12) {
					case 0:
						f.set(fmt.Sprintf("o%03d", random.IntN(10)), "changed")
						feed.Uses(feed.Owner, f.mu.rev) // simulates a faster feed
					case 1:
						f.remove(fmt.Sprintf("o%03d", random.IntN(10)))
					case 2, 3, 4:
						f.other("leases")
					case 5:
						f.other("namespaces")
					case 6:
						if random.IntN(4) == 0 {
							f.elsewhere()
						}
					case 7:
						f.stall(random.IntN(2) == 0)
					case 8:
						time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
					case 9:
						if random.IntN(10) == 0 {
							f.cutStreams(false)
						}
					default:
						if random.IntN(2) == 0 {
							synctest.Wait()
						}
						same(t, f, readFresh(t, f, feed))
					}
				}
			})
		})
	}
}

// etcd deletes many Events at one revision, and a cache may have seen only some of the deletions.
// So the ledger proves nothing for Events.
func TestEventsAreNotCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		feeds, feed := feedWithLedger(t, f)
		events := openOf(t, feeds, configmaps.GroupVersion().WithResource("events"))
		for range 20 {
			f.other("leases")
			if _, err := events.Fresh(t.Context(), true); !errors.Is(err, fresh.ErrNotFresh) {
				t.Errorf("events: %v", err) // there are too many to list them
			}
			time.Sleep(2 * time.Second)
		}
		readFresh(t, f, feed)
		if era, _ := feed.Ledger.Position(feed.Owner); !feed.Carries(era) || events.Carries(era) {
			t.Errorf("config maps: %t, events: %t", feed.Carries(era), events.Carries(era))
		}
	})
}

// If events move to another etcd while the ledger runs, reads stay correct, and caches continue.
func TestEventsMoveAway(t *testing.T) {
	for name, rev := range map[string]uint64{"a new one": 7, "one that is ahead": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				_, feed := feedWithLedger(t, f)
				epoch := feed.Cache().Stats().Epoch
				f.locked(func() { f.mu.apart = map[string]uint64{"events": rev} })
				f.cutStreams(false) // the apiserver restarts with the other etcd
				for range 50 {
					f.other("leases")
					same(t, f, readFresh(t, f, feed))
					time.Sleep(200 * time.Millisecond)
				}
				if now := feed.Cache().Stats().Epoch; now != epoch {
					t.Errorf("epoch %d instead of %d", now, epoch)
				}
				if !feed.Ledger.Has(feed.Owner) {
					t.Error("the ledger is of no use any more")
				}
			})
		})
	}
}
