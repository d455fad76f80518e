package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/conformance"
)

// watch is an open watch on a bare connection, which keeps what it sees.
type watch struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when the stream has ended

	mu struct {
		sync.Mutex
		events []conformance.Event
		err    error // how the stream ended; io.EOF for a clean end
	}
}

// watchAt opens a watch with a client that is the watch's own, and so on a connection of its own. It ends with the test.
func (e endpoint) watchAt(t *testing.T, target string) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{name: target, cancel: cancel, done: make(chan struct{})}
	e.client = &http.Client{Transport: e.client.Transport.(*http.Transport).Clone()}
	resp := e.open(ctx, t, target)
	go func() {
		defer close(w.done)
		defer e.client.CloseIdleConnections()
		defer resp.Body.Close()
		w.read(resp.Body)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// read keeps the events of a stream until it ends.
func (w *watch) read(body io.Reader) {
	r := bufio.NewReader(body)
	for {
		line, err := r.ReadBytes('\n')
		var event conformance.Event
		if err == nil {
			event, err = conformance.ParseEvent(line)
		}
		w.mu.Lock()
		if err != nil {
			w.mu.err = err
			if errors.Is(err, io.EOF) && len(line) > 0 {
				w.mu.err = io.ErrUnexpectedEOF
			}
			w.mu.Unlock()
			return
		}
		w.mu.events = append(w.mu.events, event)
		w.mu.Unlock()
	}
}

// events returns what has come so far.
func (w *watch) events() []conformance.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clip(w.mu.events)
}

// last returns the last event that has come so far, the zero one if there is none.
func (w *watch) last() conformance.Event {
	events := w.events()
	if len(events) == 0 {
		return conformance.Event{}
	}
	return events[len(events)-1]
}

// saw tells whether a change of an object has come.
func (w *watch) saw(kind, key string) bool {
	for _, e := range w.events() {
		if e.Type == kind && e.Key == key {
			return true
		}
	}
	return false
}

// ended returns how the stream ended, nil if it has not.
func (w *watch) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.err
}

// Watches may go on from what their clients have listed before the proxy had a cache, however many there are: they are what
// the cache begins with.
func TestWatchesBeginTheCache(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "early-watches")
	first := w.createPod(t, ns, pod("first"))
	w.createPod(t, ns, pod("second"))
	fresh := w.freshProxy(t)
	e := w.endpoints(t)[1]
	e.url = fresh.URL
	for i := range 40 {
		o := e.watchAt(t, fmt.Sprintf("/api/v1/namespaces/%s/pods?watch=1&resourceVersion=%s", ns, first.ResourceVersion))
		eventually(t, "an event", func() bool { return len(o.events()) > 0 })
		if event := o.last(); event.Type != "ADDED" || event.Key != ns+"/second" {
			t.Errorf("watch %d shows %v", i, event)
		}
	}
	if n := proxyMetrics(t, fresh).sum("watchproxy_forwards_in_flight", "verb", "watch"); n > 0 {
		t.Errorf("%v of them are forwarded", n)
	}
}

// A watch may go on from what a client has listed before the history that a cache has. Some are forwarded; when many come,
// the others are told to list again, as kube-apiserver tells them after a restart.
func TestWatchFromBeforeTheCache(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "late-watches")
	first := w.createPod(t, ns, pod("first"))
	w.createPod(t, ns, pod("second"))
	fresh := w.freshProxy(t)
	e := w.endpoints(t)[1]
	e.url = fresh.URL
	e.get(t, "/api/v1/namespaces/"+ns+"/pods?resourceVersion=0", nil) // the cache begins with the present
	target := fmt.Sprintf("/api/v1/namespaces/%s/pods?watch=1&resourceVersion=%s", ns, first.ResourceVersion)
	const watches, forwarded = 40, 32
	open := make([]*watch, watches)
	for i := range open {
		open[i] = e.watchAt(t, target)
	}
	served, refused := 0, 0
	for _, o := range open {
		eventually(t, "an event", func() bool { return len(o.events()) > 0 })
		switch event := o.last(); {
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
	if n := proxyMetrics(t, fresh).sum("watchproxy_requests_total", "verb", "watch", "code", "410"); n != watches-forwarded {
		t.Errorf("%v watches count as refused, want %d", n, watches-forwarded)
	}
	for _, o := range open {
		o.cancel()
		<-o.done
	}
	eventually(t, "there is room again", func() bool {
		o := e.watchAt(t, target)
		defer o.cancel()
		eventually(t, "an event", func() bool { return len(o.events()) > 0 })
		return o.last().Type == "ADDED"
	})
}

// A watch that is forwarded, as its limit means nothing, ends upstream when its client leaves.
func TestForwardedWatchEndsWithItsClient(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "forwarded-watch")
	// Nobody else watches pod templates.
	open := func() float64 {
		return w.upstreamMetrics(t).sum("apiserver_longrunning_requests", "resource", "podtemplates", "verb", "WATCH")
	}
	if n := open(); n != 0 {
		t.Fatalf("%v watches are open", n)
	}
	for _, query := range []string{"watch=1&limit=1", "watch=1&limit=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		o := w.endpoints(t)[1].watchAt(t, "/api/v1/namespaces/"+ns+"/podtemplates?"+query)
		eventually(t, "the watch is open upstream", func() bool { return open() == 1 })
		o.cancel()
		<-o.done
		eventually(t, "the watch ends upstream", func() bool { return open() == 0 })
	}
	eventually(t, "nothing is in flight", func() bool {
		return proxyMetrics(t, w.proxy).sum("watchproxy_forwards_in_flight", "verb", "watch") == 0
	})
}
