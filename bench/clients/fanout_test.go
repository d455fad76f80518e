package clients

import (
	"fmt"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// podsRequests are figures from the apiserver's own metrics about requests for pods.
type podsRequests struct{ lists, watches, open float64 }

func podsRequestsOf(t *testing.T, w *World) podsRequests {
	t.Helper()
	m := w.API.MetricsT(t)
	return podsRequests{
		lists:   m.Sum("apiserver_request_total", `resource="pods"`, `verb="LIST"`),
		watches: m.Sum("apiserver_request_total", `resource="pods"`, `verb="WATCH"`), // watches that have ended
		open:    m.Sum("apiserver_longrunning_requests", `resource="pods"`, `verb="WATCH"`),
	}
}

func (r podsRequests) since(before podsRequests) podsRequests {
	return podsRequests{r.lists - before.lists, r.watches - before.watches, r.open - before.open}
}

// Many watches cost upstream a single watch, and at most one list: the probe, which matches nothing.
// After the watches have ended, the proxy counts none of them.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	w := NewWorld(t)
	const count = 200
	namespaces := []string{w.Namespace(t, "fan-a"), w.Namespace(t, "fan-b")}
	for _, ns := range namespaces {
		w.CreatePod(t, ns, cluster.NewPod("seed"))
	}
	proxy := w.Endpoints(t)[1]
	before := podsRequestsOf(t, w)

	// The list starts the feed and returns the resourceVersion for the watches to start at.
	version := ListVersion(t, proxy.GetT(t, "/api/v1/pods?resourceVersion=0", nil))
	watches := make([]*Watch, count)
	var opening sync.WaitGroup
	const openers = 20
	for first := range openers {
		opening.Go(func() {
			for i := first; i < count; i += openers {
				target := "/api/v1/pods?watch=1"
				if i%4 > 1 {
					target = "/api/v1/namespaces/" + namespaces[i%2] + "/pods?watch=1"
				}
				target += "&resourceVersion=" + []string{"0", version}[i/4%2]
				if i%16 > 7 {
					target += "&allowWatchBookmarks=true"
				}
				watches[i] = WatchAt(t, proxy, target)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if n := w.Proxy.MetricsT(t).Sum("watchproxy_watches", `resource="pods"`); n != count {
		t.Errorf("the proxy has %v watches", n)
	}
	for _, ns := range namespaces {
		w.CreatePod(t, ns, cluster.NewPod("news"))
	}
	for i, o := range watches {
		cluster.Eventually(t, fmt.Sprintf("watch %d has the news", i), func() bool {
			return o.Saw("ADDED", namespaces[i%2]+"/news") && (i%4 > 1 || o.Saw("ADDED", namespaces[1-i%2]+"/news"))
		})
	}
	if got := podsRequestsOf(t, w).since(before); got.lists > 1 || got.watches != 0 || got.open != 1 {
		t.Errorf("upstream saw %v lists, has %v watches open, and %v have ended", got.lists, got.open, got.watches)
	}

	for _, o := range watches {
		o.Leave()
	}
	cluster.Eventually(t, "the proxy forgets them", func() bool {
		return w.Proxy.MetricsT(t).Sum("watchproxy_watches") == 0
	})
	if got := podsRequestsOf(t, w).since(before); got.lists > 1 || got.watches != 0 || got.open != 1 {
		t.Errorf("afterwards upstream saw %v lists, has %v watches open, and %v have ended", got.lists, got.open, got.watches)
	}
	if err := w.Proxy.Stop(); err != nil {
		t.Error(err)
	}
	cluster.Eventually(t, "the watch upstream ends with the proxy", func() bool {
		got := podsRequestsOf(t, w).since(before)
		return got.watches == 1 && got.open == 0 && got.lists <= 1
	})
}
