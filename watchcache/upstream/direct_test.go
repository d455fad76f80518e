package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// Here, a metadata list takes upstream 200 times as long as a probe.
const probeTakes, metadataTakes = time.Millisecond, 200 * time.Millisecond

func allowDirect(o *feed.Options) { o.Direct = true }

// readOrLeave reads like the proxy: if upstream is faster, the read goes to upstream. It returns
// how long the read waited.
func readOrLeave(t *testing.T, feed *fresh.Feed, objects int, answers time.Duration) (left bool, waited time.Duration) {
	t.Helper()
	scope := watchcache.Work{Objects: objects}
	began := time.Now()
	left = feed.Leaves(scope)
	if !left {
		_, err := feed.Fresh(t.Context(), &scope)
		left = errors.Is(err, fresh.ErrEarly)
		if err != nil && !left {
			t.Fatal(err)
		}
	}
	waited = time.Since(began)
	if left {
		feed.Answered(scope, answers, true)
	}
	return left, waited
}

// A read of few objects goes to upstream. It does not wait longer than upstream's own response
// takes, once that is known. A read of many objects waits, and so does a watch. Soon after the end
// of foreign writes, the cache answers all reads again.
func TestFewObjectsAreLeftToUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f, allowDirect)
		f.delays(probeTakes, metadataTakes)
		const few, many = 10, 100_000
		const answers = 5 * time.Millisecond // for few objects
		for i := range 100 {
			f.elsewhere()
			upstream, waited := readOrLeave(t, feed, few, answers)
			if !upstream {
				t.Errorf("read %d was not left to upstream", i)
			}
			if waited > 2*answers+fresh.EarlyAfter+2*probeTakes || waited > answers && i >= 10 {
				t.Errorf("read %d of few waited for %s", i, waited)
			}
			time.Sleep(50 * time.Millisecond)
		}
		f.elsewhere()
		if upstream, _ := readOrLeave(t, feed, many, time.Minute); upstream {
			t.Error("a read of many was left to upstream")
		}
		if n := f.count("metadata"); n > 12 {
			t.Errorf("metadata was listed %d times in five seconds", n)
		}
		time.Sleep(fresh.ExploreMost)
		for range 10 {
			readOrLeave(t, feed, few, answers)
			time.Sleep(2 * fresh.ExploreEvery)
		}
		if upstream, _ := readOrLeave(t, feed, few, answers); upstream {
			t.Error("nobody writes, and reads are left to upstream")
		}
	})
}

// A reader that comes every few seconds never waits for a metadata list, not even the first time.
// The list would take longer than upstream's own response, and help no other reader.
func TestALoneReaderDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 20*feed.SmallObjects)
		feed := openFeed(t, f, allowDirect)
		f.delays(probeTakes, metadataTakes)
		const answers, reads = 20 * time.Millisecond, 100
		for i := range reads {
			if i%3 > 0 { // other resources are written between most reads
				f.elsewhere()
			}
			if _, waited := readOrLeave(t, feed, 500, answers); waited > answers {
				t.Errorf("read %d waited for %s", i, waited)
			}
			time.Sleep(3 * time.Second)
		}
		if n := f.count("metadata"); n > reads/4 {
			t.Errorf("for %d reads, metadata was listed %d times", reads, n)
		}
	})
}

// After a single slow run, or after a failed run, no reads go to upstream. The same holds if
// upstream takes as long for the read as the run.
func TestNothingIsLeftToUpstreamForAnException(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f, allowDirect)
		read := func(times int, what string) {
			t.Helper()
			for range times {
				f.elsewhere()
				if left, _ := readOrLeave(t, feed, 10_000, 250*time.Millisecond); left {
					t.Errorf("%s: a read is left to upstream", what)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		f.delays(probeTakes, 20*time.Millisecond)
		read(100, "at first")
		f.elsewhere()
		f.delays(probeTakes, time.Second)
		readFresh(t, f, feed)
		f.delays(probeTakes, 20*time.Millisecond)
		read(100, "after a slow run")
		f.locked(func() { f.mu.down = errDown })
		for range 10 {
			if _, err := feed.Fresh(t.Context(), nil); err == nil {
				t.Error("a run without an answer succeeded")
			}
		}
		f.locked(func() { f.mu.down = nil })
		time.Sleep(time.Minute)
		read(100, "after failed ones")
		f.delays(probeTakes, 200*time.Millisecond)
		feed.Answered(watchcache.Work{Objects: 10_000}, 250*time.Millisecond, true)
		read(20, "upstream takes as long")
	})
}

// If many reads wait for long, only a few of them go to upstream. While upstream does not answer
// the probe, no reads go to upstream.
func TestFewReadsLeaveEarly(t *testing.T) {
	for _, test := range []struct {
		probe, metadata time.Duration
		most            int
	}{{0, 2 * time.Second, fresh.EarlyBurst + 1}, {2 * time.Second, 0, 0}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			fill(f, feed.SmallObjects+1)
			feed := openFeed(t, f, allowDirect)
			f.delays(test.probe, test.metadata)
			f.elsewhere()
			errs := make(chan error)
			const crowd = 100
			for range crowd {
				go func() {
					_, err := feed.Fresh(t.Context(), &watchcache.Work{Objects: 10})
					errs <- err
				}()
			}
			left := 0
			for range crowd {
				if err := <-errs; errors.Is(err, fresh.ErrEarly) {
					left++
				} else if err != nil {
					t.Error(err)
				}
			}
			if left > test.most || test.most > 0 && left == 0 {
				t.Errorf("%d reads of %d were left to upstream", left, crowd)
			}
		})
	}
}

// Within its maxAge, a read does not wait. It reports the state's age correctly: the state contains
// every write that is older than this age.
func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 100 * time.Millisecond
		f := newFake()
		fill(f, fresh.TinyObjects+1)
		feed := openFeed(t, f, func(o *feed.Options) {
			o.Resources = map[schema.GroupResource]feed.ResourceOptions{configmaps.GroupResource(): {MaxAge: most}}
		})
		f.delays(most/3, 0) // other resources are written meanwhile
		f.stall(true)
		type moment struct {
			at  time.Time
			rev uint64
		}
		var past []moment
		for i := range 400 {
			if i%7 == 0 {
				f.set(fmt.Sprintf("o%03d", i%5), fmt.Sprint(i))
				past = append(past, moment{time.Now(), f.revision()})
			}
			began := time.Now()
			s, age, ok := feed.Recent()
			if !ok {
				var err error
				if s, err = feed.Fresh(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				age = 0
			}
			if age > most {
				t.Errorf("a state of %s ago", age)
			}
			if i > 10 && age == 0 {
				t.Errorf("read %d was not answered at once", i)
			}
			if age > 0 {
				if waited := time.Since(began); waited > 0 {
					t.Errorf("waited for %s", waited)
				}
			}
			for _, m := range past {
				if !m.at.After(began.Add(-age)) && s.ResourceVersion() < m.rev {
					t.Errorf("said to be of %s ago, and misses what was written %s ago", age, began.Sub(m.at))
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.locked(func() { f.mu.down = errors.New("away") })
		time.Sleep(most + time.Millisecond)
		if _, age, ok := feed.Recent(); ok {
			t.Errorf("answered with a state of %s ago", age)
		}
	})
}

// With any number of reads within a maxAge, at most one proof is started in advance.
func TestOneProofIsBegunAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f, func(o *feed.Options) {
			o.Resources = map[schema.GroupResource]feed.ResourceOptions{configmaps.GroupResource(): {MaxAge: time.Second}}
		})
		f.delays(probeTakes, 2*metadataTakes)
		readFresh(t, f, feed)
		before := f.count("probe")
		const seconds = 10
		for range seconds * 200 {
			f.elsewhere()
			for range 20 {
				feed.Recent()
			}
			time.Sleep(5 * time.Millisecond)
		}
		if n := f.count("probe") - before; n < seconds/2 || n > 4*seconds {
			t.Errorf("%d probes in %d seconds", n, seconds)
		}
	})
}

// Upstream converts custom resources anew for each get of the most recent state, so such a get does
// not come from a cache if a webhook converts.
func TestConvertedGetsAreForwarded(t *testing.T) {
	for strategy, want := range map[string]bool{"None": true, "Webhook": false, "unknown": false} {
		t.Run(strategy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				upstream := widgetUpstream(func(req *http.Request) (*http.Response, error) {
					switch {
					case strategy == "unknown":
						return reply(403, `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403}`), nil
					case strings.HasSuffix(req.URL.Path, "/widgets.example.com"):
						return reply(200, `{"metadata":{"uid":"one","generation":1},"spec":{"conversion":{"strategy":"`+strategy+`"},"versions":[{"name":"v1"}]}}`), nil
					}
					return reply(200, `{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"widgets.example.com","uid":"one","generation":1}}]}`), nil
				})
				lists := roundTrip(func(req *http.Request) (*http.Response, error) {
					if strings.HasSuffix(req.URL.Path, "/v1/widgets") && req.URL.Query().Get("watch") == "" {
						return reply(200, `{"apiVersion":"example.com/v1","items":[{"apiVersion":"example.com/v1","kind":"Widget",`+
							`"metadata":{"name":"a","namespace":"ns","resourceVersion":"50","uid":"u"},"spec":{"v":"new"}}],"kind":"WidgetList","metadata":{"resourceVersion":"100"}}`), nil
					}
					return upstream(req)
				})
				feeds := start(t, lists, func(o *feed.Options) {
					o.Resources = map[schema.GroupResource]feed.ResourceOptions{widgets.GroupResource(): {MaxAge: time.Hour}}
				})
				source := openOf(t, feeds, widgets)
				time.Sleep(time.Minute)
				if _, err := source.Fresh(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				if got := feeds.AnswersGets(widgets, object.Want{}, object.JSON); got != want {
					t.Errorf("a get may come from the cache: %t, want %t", got, want)
				}
			})
		})
	}
}
