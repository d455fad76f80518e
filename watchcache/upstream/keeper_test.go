package upstream

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// withLedger switches the ledger on.
func withLedger(o *feed.Options) { o.Ledger = true }

// feedWithLedger returns a feed of a large quiet collection with a running ledger, while other
// resources are written.
func feedWithLedger(t *testing.T, f *fakeUpstream) (*Feeds, *fresh.Feed) {
	t.Helper()
	fill(f, feed.SmallObjects+1)
	feeds := start(t, f, withLedger)
	feed := openFrom(t, feeds)
	for range 100 {
		f.other("leases")
		same(t, f, readFresh(t, f, feed))
		time.Sleep(100 * time.Millisecond)
	}
	if !feed.Keeper.Ledger.Has(feed.Feed.Owner) {
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
		feed.Keeper.Ledger.Forget() // simulates a broken ledger watch
		carries := func() bool {
			era, _ := feed.Keeper.Ledger.Position(feed.Feed.Owner)
			return feed.Carries(era)
		}
		for range 20 {
			f.other("leases")
			time.Sleep(fresh.Every)
		}
		if !feed.Keeper.Ledger.Has(feed.Feed.Owner) || !carries() {
			t.Errorf("there is evidence: %t, and a state: %t", feed.Keeper.Ledger.Has(feed.Feed.Owner), carries())
		}
	})
}

// The ledger's watches end when no reader needs it.
func TestLedgerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		source := ledgerFeed(t, f)
		readFor(t, f, source, 30*time.Second)
		if f.count("open") != 3 {
			t.Fatalf("%d watches", f.count("open"))
		}
		time.Sleep(fresh.Needed + 2*fresh.Every)
		if n := f.count("open"); source.Keeper.Ledger.Has(source.Feed.Owner) || n != 0 {
			t.Errorf("%d watches are open for nobody", n)
		}
		before := f.count("ledger")
		time.Sleep(time.Hour)
		if n := f.count("ledger") - before; n != 0 {
			t.Errorf("%d more watches", n)
		}
	})
}

// startLedger reads as often as starts the ledger, each time after a write that no watch shows.
func startLedger(t *testing.T, f *fakeUpstream, feed *fresh.Feed) {
	t.Helper()
	for range 30 {
		f.elsewhere()
		readFresh(t, f, feed)
	}
}

// The resource that is read gets its evidence first, even if there are many others, and each probe
// waits for upstream's own cache. Each round of comparisons needs a write, and in a quiet cluster there
// are few.
func TestReadersDoNotWaitForOthersEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for i := range 300 {
			f.mu.more += fmt.Sprintf(`,{"name":"a%d","namespaced":true,"kind":"A","verbs":["get","list","watch"]}`, i)
		}
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f, withLedger)
		startLedger(t, f, feed)
		f.delays(100 * time.Millisecond)
		writes := 0
		for ; !feed.Keeper.Ledger.Has(feed.Feed.Owner) && writes < 100; writes++ {
			f.other("leases")
			readFresh(t, f, feed)
			time.Sleep(5 * time.Second)
		}
		if most := 1 + fresh.EvidenceEnough; writes > most {
			t.Errorf("evidence after %d writes, want %d at most", writes, most)
		}
	})
}

// etcd deletes many Events at one revision, and a cache may have seen only some of the deletions.
// So the ledger proves nothing for Events.
func TestEventsAreNotCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		feeds, feed := feedWithLedger(t, f)
		events := openOf(t, feeds, configmaps.GroupVersion().WithResource("events"))
		f.expire(leased(fewObjects)...) // upstream lists events if there are few of them
		time.Sleep(10 * time.Second)
		for range 20 {
			f.other("leases")
			same(t, f, readFresh(t, f, events))
			time.Sleep(2 * time.Second)
		}
		readFresh(t, f, feed)
		if era, _ := feed.Keeper.Ledger.Position(feed.Feed.Owner); !feed.Carries(era) || events.Carries(era) {
			t.Errorf("config maps: %t, events: %t", feed.Carries(era), events.Carries(era))
		}
	})
}

// If events move to another etcd while the ledger runs, reads stay correct, and caches continue. The
// ledger excludes events, also if no watch has broken.
func TestEventsMoveAway(t *testing.T) {
	for name, rev := range map[string]uint64{"a new one": 7, "one that is ahead": 1 << 30} {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,cut=%t", name, cut), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					_, feed := feedWithLedger(t, f)
					epoch := feed.Cache().Stats().Epoch
					f.locked(func() { f.mu.apart = map[string]uint64{"events": rev} })
					if cut {
						f.cutStreams(false) // the apiserver restarts with the other etcd
					}
					for range 20 { // before a watchdog ends the silent stream
						f.other("leases")
						same(t, f, readFresh(t, f, feed))
						time.Sleep(200 * time.Millisecond)
					}
					if now := feed.Cache().Stats().Epoch; now != epoch {
						t.Errorf("epoch %d instead of %d", now, epoch)
					}
					if !feed.Keeper.Ledger.Has(feed.Feed.Owner) || feed.Keeper.Ledger.Has(ownerOf(events.GroupResource())) {
						t.Error("the ledger is of no use any more, or has the events")
					}
				})
			})
		}
	}
}

// readFor reads every ten seconds, while leases are written and streams get bookmarks.
func readFor(t *testing.T, f *fakeUpstream, source *fresh.Feed, length time.Duration) {
	t.Helper()
	for began := time.Now(); time.Since(began) < length; time.Sleep(10 * time.Second) {
		f.other("leases")
		synctest.Wait()
		same(t, f, readFresh(t, f, source))
		f.locked(func() {
			f.mu.history = append(f.mu.history, fakeEvent{f.mu.rev, "BOOKMARK", bookmarkJSON(f.mu.rev, false)})
		})
	}
}

// The ledger's watches end in time and open again, and the ledger forgets nothing.
func TestLedgerOutlivesItsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, source := feedWithLedger(t, f)
		era, _ := source.Keeper.Ledger.Position(source.Feed.Owner)
		before := f.count("ledger")
		readFor(t, f, source, 3*feed.WatchLife)
		if now, _ := source.Keeper.Ledger.Position(source.Feed.Owner); now != era || f.count("ledger") == before {
			t.Errorf("era %d after %d, %d more watches", now, era, f.count("ledger")-before)
		}
	})
}

// Upstream's watches end cleanly after half an hour, or because it shuts down. If etcd is restored
// before upstream is back, the ledger has forgotten the revisions of the lost history.
func TestRestoreAfterCleanEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, source := feedWithLedger(t, f)
		readFor(t, f, source, feed.WatchLife)
		restored := f.revision()
		for range 10 {
			f.other("leases") // these writes are lost
		}
		synctest.Wait()
		f.locked(func() { f.mu.down = errDown })
		f.cutStreams(false)
		time.Sleep(time.Second)
		f.locked(func() {
			f.mu.down, f.mu.stalled, f.mu.rev = nil, true, restored
			f.mu.others = slices.DeleteFunc(f.mu.others, func(e otherEvent) bool { return e.rev > restored })
		})
		time.Sleep(10 * time.Second) // all watches are open again
		f.set("o001", "changed")
		for range 10 {
			f.other("leases")
		}
		synctest.Wait()
		same(t, f, readFresh(t, f, source))
	})
}

// A feed that stops during its probe takes nothing from the ledger of other feeds.
func TestStoppedFeedLeavesTheLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		feeds, feed := feedWithLedger(t, f)
		f.delays(time.Second)
		era, _ := feeds.keeper.Ledger.Position(feed.Feed.Owner)
		go func() { _, _ = feed.Fresh(t.Context(), true) }()
		time.Sleep(fresh.Every)
		feed.Feed.Stop()
		if now, _ := feeds.keeper.Ledger.Position(feed.Feed.Owner); now != era {
			t.Errorf("era %d after %d", now, era)
		}
	})
}

// Etcd is restored, and the feed's stream does not break. In the ledger's new era, upstream itself must
// show a cache's state before the ledger may prove it current.
func TestLedgerAfterARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lost = 40
		f, source := filledFeed(t, fewObjects, withLedger)
		f.locked(func() { f.mu.cut = make(chan struct{}) }) // of later streams
		for range 100 {
			f.other("leases")
			same(t, f, readFresh(t, f, source))
			time.Sleep(100 * time.Millisecond)
		}
		if era, _ := source.Keeper.Ledger.Position(source.Feed.Owner); !source.Carries(era) {
			t.Fatal("no ledger")
		}
		f.locked(func() { f.mu.others, f.mu.rev = nil, f.mu.rev-lost })
		f.set("o001", "restored")
		f.cutStreams(false)
		for range lost {
			time.Sleep(fresh.Every)
			f.other("leases")
		}
		synctest.Wait()
		same(t, f, readFresh(t, f, source))
	})
}

// The ledger has noted revisions above upstream's present one, so etcd was restored. No stream has
// broken, and upstream is past the revision of the caches again. All caches of the etcd are read again,
// and no reader gets the lost history.
func TestRestoreThatTheLedgerNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.mu.more = `,{"name":"copies","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]}`
		feeds, source := feedWithLedger(t, f)
		other := openOf(t, feeds, configmaps.GroupVersion().WithResource("copies"))
		for range 10 {
			f.other("leases")
			readFresh(t, f, other)
			readFresh(t, f, source)
			time.Sleep(time.Second)
		}
		f.bookmark()
		synctest.Wait()
		at := f.revision()
		for range 20 {
			f.other("leases") // noted, and lost with the restore
		}
		synctest.Wait()
		era, noted := source.Keeper.Ledger.Position(source.Feed.Owner)
		if !source.Carries(era) || !other.Carries(era) || noted != at+20 {
			t.Fatalf("carries: %t, %t; noted %d of %d", source.Carries(era), other.Carries(era), noted, at+20)
		}
		f.stall(true)
		f.locked(func() { f.mu.rev = at - 5 })
		f.set("o001", "restored")
		f.locked(func() { f.mu.rev = at + 5 })
		if s, err := source.Fresh(t.Context(), true); err == nil {
			same(t, f, s)
		}
		f.stall(false)
		time.Sleep(time.Minute)
		for _, feed := range []*fresh.Feed{source, other} {
			s, err := feed.Cache().Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			same(t, f, s)
		}
	})
}

// The feed's stream breaks, because the server behind it restarts with a restored etcd. The ledger's
// watches go on at another server. Revisions of the lost history prove nothing for the new one.
func TestRestoreBehindAFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, source := filledFeed(t, feed.SmallObjects+1, withLedger)
		streams := f.mu.cut
		f.locked(func() { f.mu.cut = make(chan struct{}) }) // of later streams
		startLedger(t, f, source)
		readFor(t, f, source, 30*time.Second)
		synctest.Wait()
		at := f.revision()
		for range 10 {
			f.other("leases") // noted, and lost with the restore
		}
		synctest.Wait()
		if era, noted := source.Keeper.Ledger.Position(source.Feed.Owner); !source.Carries(era) || noted != at+10 {
			t.Fatalf("carries: %t, noted %d of %d", source.Carries(era), noted, at+10)
		}
		f.stall(true)
		f.locked(func() { f.mu.rev = at })
		close(streams)
		time.Sleep(time.Second)
		f.set("o001", "restored")
		f.locked(func() { f.mu.rev = at + 10 })
		same(t, f, readFresh(t, f, source))
	})
}

// The ledger forgets while a probe is under way. The probe's answer may be older than the new era, so it
// does not show a state of that era.
func TestProbeOfAnEarlierEra(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, source := feedWithLedger(t, f)
		source.Keeper.Ledger.Forget()
		f.delays(100 * time.Millisecond)
		var reader sync.WaitGroup
		reader.Go(func() { readFresh(t, f, source) })
		time.Sleep(50 * time.Millisecond)
		source.Keeper.Ledger.Forget()
		for at := range uint64(fresh.EvidenceEnough) {
			var readings []fresh.Reading
			for _, resource := range []string{"namespaces", "configmaps", "events", "namespaces"} {
				o := ownerOf(schema.GroupResource{Resource: resource})
				readings = append(readings, fresh.Reading{Of: o, RV: f.revision() + at})
			}
			source.Keeper.Ledger.Attest(readings)
		}
		reader.Wait()
		if era, _ := source.Keeper.Ledger.Position(source.Feed.Owner); !source.Keeper.Ledger.Has(source.Feed.Owner) || source.Carries(era) {
			t.Errorf("evidence: %t, carries: %t", source.Keeper.Ledger.Has(source.Feed.Owner), source.Carries(era))
		}
	})
}

// The ledger ends when the configuration turns it off, and does not begin again.
func TestLedgerIsTurnedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		feeds, source := feedWithLedger(t, f)
		options := *feeds.shared.Options.Load()
		options.Ledger = false
		feeds.SetOptions(options)
		time.Sleep(2 * fresh.Every)
		era, _ := source.Keeper.Ledger.Position(source.Feed.Owner)
		before := f.count("ledger")
		for range 35 { // each waits for a side watch
			f.other("leases")
			readFresh(t, f, source)
		}
		now, _ := source.Keeper.Ledger.Position(source.Feed.Owner)
		if n := f.count("ledger") - before; source.Keeper.Ledger.Has(source.Feed.Owner) || n != 0 || now != era {
			t.Errorf("covered: %t, %d more watches, era %d after %d", source.Keeper.Ledger.Has(source.Feed.Owner), n, now, era)
		}
	})
}

// A ledger that proves nothing for two minutes rests for ten.
func TestUselessLedgerRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, source := filledFeed(t, feed.SmallObjects+1, withLedger)
		running := [4]int{} // seconds in each five minutes
		for i := range 20 * 60 {
			f.other("leases")
			f.elsewhere() // a hole before each read
			_, _ = source.Fresh(t.Context(), false)
			if source.Keeper.Ledger.Has(ownerOf(events.GroupResource())) {
				running[i/60/5]++
			}
			time.Sleep(time.Second)
		}
		if running[0] < 60 || running[1] > 0 || running[2] < 60 || running[3] > 0 {
			t.Errorf("in each five minutes, the ledger runs for %d seconds", running)
		}
	})
}

// A ledger that has had nothing to prove goes on: in a quiet cluster, all that readers wait for are the
// apiservers' own leases. When others write, it proves.
func TestQuietLedgerGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, source := filledFeed(t, feed.SmallObjects+1, withLedger)
		startLedger(t, f, source)
		for range 100 { // before, it proves
			for range 30 {
				f.other("leases")
			}
			readFresh(t, f, source)
			time.Sleep(100 * time.Millisecond)
		}
		for range 180 { // half an hour
			f.other("leases")
			f.elsewhere()
			_, _ = source.Fresh(t.Context(), false)
			time.Sleep(10 * time.Second)
		}
		f.bookmark()
		readFresh(t, f, source)
		before := f.count("side-watch")
		for range 10 {
			f.other("leases")
			readFresh(t, f, source)
		}
		if n := f.count("side-watch") - before; n != 0 {
			t.Errorf("%d side watches for ten readers", n)
		}
	})
}

// Runs for holes take a 20th of the time at most, and only while the next reader is expected soon.
func TestHolesAreClosedForReaders(t *testing.T) {
	for objects, most := range map[int]int{fewObjects: 150, feed.SmallObjects + 1: 10} {
		t.Run(fmt.Sprint(objects), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, source := filledFeed(t, objects, withLedger)
				startLedger(t, f, source)
				readFor(t, f, source, time.Minute)
				f.delays(5 * time.Millisecond)
				helped := 0
				for range 10 {
					f.bookmark()
					f.other("leases")
					synctest.Wait()
					before := f.count("list") + f.count("side-watch")
					readFresh(t, f, source)
					for range 100 { // 25 s
						f.elsewhere()
						f.other("leases")
						time.Sleep(250 * time.Millisecond)
					}
					helped += f.count("list") + f.count("side-watch") - before
				}
				if helped < 10 || helped > most {
					t.Errorf("upstream had to help %d times for ten readers, want %d at most", helped, most)
				}
			})
		})
	}
}

// A revision that arrives late is no hole.
func TestEventsUnderWayAreNoHoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, source := feedWithLedger(t, f)
		f.other("leases")
		readFresh(t, f, source)
		time.Sleep(5 * time.Second)
		probes, helped := f.count("probe"), f.count("side-watch")
		f.locked(func() { f.mu.held = "leases" })
		f.other("leases")
		f.other("namespaces")
		time.Sleep(30 * time.Millisecond)
		f.locked(func() { f.mu.held = "" })
		time.Sleep(5 * time.Second)
		if f.count("probe") != probes || f.count("side-watch") != helped {
			t.Errorf("%d probes, %d side watches", f.count("probe")-probes, f.count("side-watch")-helped)
		}
	})
}

// Many readers come before a hole. One run sends a probe of the resource itself, which takes long, and
// the others wait for it.
func TestOneProbeOfTheResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		source := ledgerFeed(t, f)
		readFor(t, f, source, 30*time.Second)
		var own atomic.Int64
		f.answers(func(req *http.Request) (*http.Response, error) {
			if isProbeOf(req, "configmaps") {
				own.Add(1)
				client.Sleep(req.Context(), 100*time.Millisecond)
			}
			return nil, nil
		})
		f.delays(time.Millisecond)
		f.elsewhere() // a hole
		f.other("leases")
		var readers sync.WaitGroup
		for range 500 {
			readers.Go(func() { _, _ = source.Fresh(t.Context(), false) })
			time.Sleep(time.Millisecond)
		}
		readers.Wait()
		if n := own.Load(); n != 1 {
			t.Errorf("%d probes of the resource for 500 readers", n)
		}
	})
}

// Events hang, for example because their etcd is away. Reads of other resources are answered.
func TestEventsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		source := ledgerFeed(t, f)
		readFor(t, f, source, 30*time.Second)
		f.answers(func(req *http.Request) (*http.Response, error) {
			if isProbeOf(req, "events") {
				<-req.Context().Done()
			}
			return nil, req.Context().Err()
		})
		for i := range 3 {
			f.other("leases")
			f.bookmark()
			synctest.Wait()
			began := time.Now()
			readFresh(t, f, source)
			if took, most := time.Since(began), []time.Duration{feed.AskTimeout / 2, 0, 0}[i]; took > most {
				t.Errorf("read %d took %v, want %v at most", i, took, most)
			}
		}
	})
}

// If upstream is a proxy that relists, deletions may have revisions of other resources. They do not
// count, or the ledger would exclude both resources.
func TestRelistedDeletionsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, source := feedWithLedger(t, f)
		for i := range 3 {
			f.locked(func() {
				f.mu.rev++
				f.mu.others = append(f.mu.others, otherEvent{f.mu.rev, "leases"})
				f.mu.history = append(f.mu.history, fakeEvent{f.mu.rev, "BOOKMARK", bookmarkJSON(f.mu.rev, false)})
				f.mu.rev--
				f.removeLocked("DELETED", fmt.Sprintf("o%03d", i))
			})
			for range 20 {
				time.Sleep(fresh.Every)
				f.other("leases")
				readFresh(t, f, source)
			}
		}
		for _, resource := range []string{"configmaps", "leases"} {
			if o := ownerOf(schema.GroupResource{Resource: resource}); !source.Keeper.Ledger.Has(o) {
				t.Errorf("the ledger excludes %s", resource)
			}
		}
	})
}

// A few readers do not start the ledger, whose watches cost upstream more than they do. Nor do readers of
// scopes, about which the ledger proves nothing.
func TestLedgerNeedsManyReaders(t *testing.T) {
	for _, c := range []struct {
		readers int
		scoped  bool
		want    bool
	}{{29, false, false}, {30, false, true}, {30, true, false}} {
		t.Run(fmt.Sprintf("%d,scoped=%t", c.readers, c.scoped), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				fill(f, fewObjects)
				feeds := start(t, f, withLedger, func(o *feed.Options) {
					if c.scoped {
						o.Scopes = map[schema.GroupResource][]object.Scope{configmaps.GroupResource(): {{Namespace: "ns"}}}
					}
				})
				source, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0)
				if err != nil {
					t.Fatal(err)
				}
				for range c.readers {
					f.elsewhere()
					readFresh(t, f, source)
				}
				time.Sleep(fresh.Needed + time.Second)
				f.elsewhere()
				readFresh(t, f, source)
				time.Sleep(time.Second)
				if n := f.count("ledger"); n > 0 != c.want {
					t.Errorf("%d watches", n)
				}
			})
		})
	}
}

// A run goes on as soon as the stream or the ledger shows the probe's revision, also while it probes the
// resource itself, which takes long. No side watch is needed.
func TestRunsWaitForTheirProof(t *testing.T) {
	for _, proof := range []string{"stream", "ledger"} {
		for takes, late := range map[time.Duration]time.Duration{0: 5 * time.Millisecond, 100 * time.Millisecond: 50 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s,own=%s", proof, takes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					source := ledgerFeed(t, f)
					readFor(t, f, source, 30*time.Second)
					f.answers(func(req *http.Request) (*http.Response, error) {
						if isProbeOf(req, "configmaps") {
							client.Sleep(req.Context(), takes)
						}
						return nil, nil
					})
					helped, began := f.count("side-watch"), time.Now()
					f.locked(func() { f.mu.held = "leases" })
					f.other("leases")
					time.AfterFunc(late, func() {
						if proof == "stream" {
							f.bookmark()
						} else {
							f.locked(func() { f.mu.held = "" })
						}
					})
					same(t, f, readFresh(t, f, source))
					took, n := time.Since(began), f.count("side-watch")-helped
					if n != 0 || takes == 0 && took != late {
						t.Errorf("the read took %v, and %d side watches", took, n)
					}
				})
			})
		}
	}
}

// ownerOf is here because many tests have a variable feed.
var ownerOf = feed.OwnerOf
