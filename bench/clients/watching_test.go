package clients

import (
	"fmt"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Watches can start at the resourceVersion of a list that was made before the proxy had a cache.
// The cache's history then begins at that resourceVersion, for any number of such watches.
func TestWatchesBeginTheCache(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "early-watches")
	first := w.CreatePod(t, ns, cluster.NewPod("first"))
	w.CreatePod(t, ns, cluster.NewPod("second"))
	fresh := w.FreshProxy(t, "")
	e := fresh.EndpointT(t)
	for i := range 40 {
		o := WatchAt(t, e, fmt.Sprintf("/api/v1/namespaces/%s/pods?watch=1&resourceVersion=%s", ns, first.ResourceVersion))
		cluster.Eventually(t, "an event", func() bool { return len(o.Events()) > 0 })
		if event := o.Last(); event.Type != "ADDED" || event.Key != ns+"/second" {
			t.Errorf("watch %d shows %v", i, event)
		}
	}
	if n := fresh.MetricsT(t).Sum("watchproxy_forwards_in_flight", `verb="watch"`); n > 0 {
		t.Errorf("%v of them are forwarded", n)
	}
}

// Watches can start at a resourceVersion from before a cache's history. The proxy forwards some of
// these. If there are many, the others get 410, as they do from kube-apiserver after a restart.
func TestWatchFromBeforeTheCache(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "late-watches")
	first := w.CreatePod(t, ns, cluster.NewPod("first"))
	w.CreatePod(t, ns, cluster.NewPod("second"))
	fresh := w.FreshProxy(t, "")
	e := fresh.EndpointT(t)
	e.GetT(t, "/api/v1/namespaces/"+ns+"/pods?resourceVersion=0", nil) // the cache's history begins now
	target := fmt.Sprintf("/api/v1/namespaces/%s/pods?watch=1&resourceVersion=%s", ns, first.ResourceVersion)
	const watches, forwarded = 40, 32
	open := make([]*Watch, watches)
	for i := range open {
		open[i] = WatchAt(t, e, target)
	}
	served, refused := 0, 0
	for _, o := range open {
		cluster.Eventually(t, "an event", func() bool { return len(o.Events()) > 0 })
		switch event := o.Last(); {
		case event.Type == "ADDED" && event.Key == ns+"/second":
			served++
		case event.Type == "ERROR":
			refused++
		default:
			t.Errorf("got %v", event)
		}
	}
	if served != forwarded || refused != watches-forwarded {
		t.Errorf("%d were served and %d refused", served, refused)
	}
	if n := fresh.MetricsT(t).Sum("watchproxy_requests_total", `verb="watch"`, `code="410"`); n != watches-forwarded {
		t.Errorf("%v watches count as refused, want %d", n, watches-forwarded)
	}
	for _, o := range open {
		o.Leave()
	}
	cluster.Eventually(t, "there is room again", func() bool {
		o := WatchAt(t, e, target)
		defer o.cancel()
		cluster.Eventually(t, "an event", func() bool { return len(o.Events()) > 0 })
		return o.Last().Type == "ADDED"
	})
}

// When the client of a forwarded watch disconnects, the watch ends upstream, too. The proxy
// forwards this one because a limit has no meaning for a watch.
func TestForwardedWatchEndsWithItsClient(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "forwarded-watch")
	// No other client watches pod templates.
	open := func() float64 {
		return w.API.MetricsT(t).Sum("apiserver_longrunning_requests", `resource="podtemplates"`, `verb="WATCH"`)
	}
	if n := open(); n != 0 {
		t.Fatalf("%v watches are open", n)
	}
	for _, query := range []string{"watch=1&limit=1", "watch=1&limit=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		o := WatchAt(t, w.Endpoints(t)[1], "/api/v1/namespaces/"+ns+"/podtemplates?"+query)
		cluster.Eventually(t, "the watch is open upstream", func() bool { return open() == 1 })
		o.Leave()
		cluster.Eventually(t, "the watch ends upstream", func() bool { return open() == 0 })
	}
	cluster.Eventually(t, "nothing is in flight", func() bool {
		return w.Proxy.MetricsT(t).Sum("watchproxy_forwards_in_flight", `verb="watch"`) == 0
	})
}
