package upstream

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Within its maxAge, a read does not wait. It reports the state's age correctly: the state contains
// every write that is older than this age.
func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 100 * time.Millisecond
		f, feed := filledFeed(t, fewObjects+1, func(o *feed.Options) {
			o.Resources = map[schema.GroupResource]feed.ResourceOptions{configmaps.GroupResource(): {MaxAge: most}}
		})
		f.delays(most / 3) // other resources are written meanwhile
		f.stall(true)
		readFresh(t, f, feed)
		written := map[uint64]time.Time{}
		for i := range 400 {
			if i%7 == 0 {
				f.set(fmt.Sprintf("o%03d", i%5), fmt.Sprint(i))
				written[f.revision()] = time.Now()
			}
			began := time.Now()
			s, age, ok := feed.Recent()
			if !ok || age <= 0 || age > most || time.Since(began) > 0 {
				t.Fatalf("read %d: a state of %s ago, %t, after %s", i, age, ok, time.Since(began))
			}
			for rev, at := range written {
				if !at.After(began.Add(-age)) && s.ResourceVersion() < rev {
					t.Errorf("said to be of %s ago, and misses what was written %s ago", age, began.Sub(at))
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.locked(func() { f.mu.down = errDown })
		time.Sleep(most + time.Millisecond)
		if _, age, ok := feed.Recent(); ok {
			t.Errorf("answered with a state of %s ago", age)
		}
	})
}

// With any number of reads within a maxAge, at most one proof is started in advance.
func TestOneProofIsBegunAhead(t *testing.T) {
	const most, seconds = 10 * time.Second, 100
	synctest.Test(t, func(t *testing.T) {
		f, feed := filledFeed(t, feed.SmallObjects+1, func(o *feed.Options) {
			o.Resources = map[schema.GroupResource]feed.ResourceOptions{configmaps.GroupResource(): {MaxAge: most}}
		})
		f.delays(time.Millisecond)
		readFresh(t, f, feed)
		before := f.count("probe")
		for range seconds * 200 {
			f.elsewhere()
			for range 20 {
				feed.Recent()
			}
			time.Sleep(5 * time.Millisecond)
		}
		if n := f.count("probe") - before; n < seconds/10 || n > seconds/4 {
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
				feeds := start(t, upstream, func(o *feed.Options) {
					o.Resources = map[schema.GroupResource]feed.ResourceOptions{widgets.GroupResource(): {MaxAge: time.Hour}}
				})
				source := openOf(t, feeds, widgets)
				time.Sleep(time.Minute)
				if _, err := source.Fresh(t.Context(), true); err != nil {
					t.Fatal(err)
				}
				if got := feeds.AnswersGets(widgets, object.Want{}, object.JSON); got != want {
					t.Errorf("a get may come from the cache: %t, want %t", got, want)
				}
			})
		})
	}
}
