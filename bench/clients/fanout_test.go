package clients

import (
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podsRequests is what the apiserver itself counts about pods.
type podsRequests struct{ lists, watches, open float64 }

func (w *world) podsRequests(t *testing.T) podsRequests {
	t.Helper()
	m := w.upstreamMetrics(t)
	return podsRequests{
		lists:   m.sum("apiserver_request_total", "resource", "pods", "verb", "LIST"),
		watches: m.sum("apiserver_request_total", "resource", "pods", "verb", "WATCH"), // those that have ended
		open:    m.sum("apiserver_longrunning_requests", "resource", "pods", "verb", "WATCH"),
	}
}

func (r podsRequests) since(before podsRequests) podsRequests {
	return podsRequests{r.lists - before.lists, r.watches - before.watches, r.open - before.open}
}

// A thousand watches are one watch upstream, and one list at most: the probe, which matches nothing. When they leave,
// nothing of them stays.
func TestThousandWatches(t *testing.T) {
	w := ownWorld(t)
	const count = 1000
	namespaces := []string{w.namespace(t, "fan-a"), w.namespace(t, "fan-b")}
	for _, ns := range namespaces {
		w.createPod(t, ns, pod("seed"))
	}
	proxy := w.endpoints(t)[1]
	before := w.podsRequests(t)

	// The list starts the feed and tells the resourceVersion to watch from.
	version := listVersion(t, proxy.get(t, "/api/v1/pods?resourceVersion=0", nil))
	idle := proxyMetrics(t, w.proxy)
	watches := make([]*watch, count)
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
				watches[i] = proxy.watchAt(t, target)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if n := proxyMetrics(t, w.proxy).sum("watchproxy_watches", "resource", "pods"); n != count {
		t.Errorf("the proxy has %v watches", n)
	}
	for _, ns := range namespaces {
		w.createPod(t, ns, pod("news"))
	}
	for i, o := range watches {
		eventually(t, fmt.Sprintf("watch %d has the news", i), func() bool {
			return o.saw("ADDED", namespaces[i%2]+"/news") && (i%4 > 1 || o.saw("ADDED", namespaces[1-i%2]+"/news"))
		})
	}
	if got := w.podsRequests(t).since(before); got.lists > 1 || got.watches != 0 || got.open != 1 {
		t.Errorf("upstream saw %v lists, has %v watches open, and %v have ended", got.lists, got.open, got.watches)
	}

	for _, o := range watches {
		o.cancel()
	}
	for _, o := range watches {
		<-o.done
	}
	eventually(t, "the proxy forgets them", func() bool {
		m := proxyMetrics(t, w.proxy)
		const slack = 20 // connections for metrics, and the race detector's
		return m.sum("watchproxy_watches") == 0 && m.sum("watchproxy_feed_watches") == 0 &&
			m.sum("go_goroutines") < idle.sum("go_goroutines")+slack &&
			m.sum("process_open_fds") < idle.sum("process_open_fds")+slack
	})
	if got := w.podsRequests(t).since(before); got.lists > 1 || got.watches != 0 || got.open != 1 {
		t.Errorf("afterwards upstream saw %v lists, has %v watches open, and %v have ended", got.lists, got.open, got.watches)
	}
	if err := w.proxy.Stop(); err != nil {
		t.Error(err)
	}
	eventually(t, "the watch upstream ends with the proxy", func() bool {
		got := w.podsRequests(t).since(before)
		return got.watches == 1 && got.open == 0 && got.lists <= 1
	})
}

// listVersion returns a list's resourceVersion.
func listVersion(t *testing.T, a answer) string {
	t.Helper()
	var list metav1.PartialObjectMetadataList
	a.decode(t, &list)
	if list.ResourceVersion == "" {
		t.Fatalf("no resourceVersion in %d %s", a.status, a.body)
	}
	return list.ResourceVersion
}
