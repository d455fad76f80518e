package proxy

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// parserDiff sends the same bytes to a proxy and to a server like kube-apiserver, one connection at
// a time, and records the requests that each of them reads.
type parserDiff struct {
	forwardsAll
	proxy  *rawListener
	direct *rawListener
	feeds  map[schema.GroupVersionResource]*rawFeed
	mu     struct {
		sync.Mutex
		astray   bool     // a request was not numbered
		run      int      // counts connections; late requests from earlier connections are ignored
		client   *rawConn // of the proxy
		outcomes []*outcome
		heard    []*heard
	}
}

// numbered is the header that carries the number of the outcome to upstream.
const numbered = "X-Raw-Request-Number"

func newParserDiff(tb testing.TB) *parserDiff {
	tb.Helper()
	w := &parserDiff{proxy: newRawListener(), direct: newRawListener(), feeds: rawFeeds(tb)}
	forwards, err := forwarderTo(behind(tb, w.upstream), func(way http.RoundTripper) http.RoundTripper { return &numbering{w, way} })
	if err != nil {
		tb.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	const long = time.Minute
	options := Options{Options: read.Options{SyncTimeout: long}, Limits: testLimits()}
	s := NewServer(Parts{w, forwards, newStore(tb, 1<<20), metrics.New(registry), zap.NewNop()}, options)
	s.listening = s.listen(&noting{s, w})
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	server := &http.Server{Handler: http.HandlerFunc(w.apiserver), ErrorLog: log.New(io.Discard, "", 0)}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(w.direct) })
	running.Go(func() { _ = s.Serve(ctx, w.proxy) })
	tb.Cleanup(func() {
		cancel()
		server.Close()
		running.Wait()
	})
	return w
}

// noting records every request that the proxy reads, including refused requests.
type noting struct {
	*Server
	w *parserDiff
}

// Handle implements exchange.Handler.
func (n *noting) Handle(ctx context.Context, req *exchange.Request) *exchange.Response {
	n.w.begin(req)
	resp := n.Server.Handle(ctx, req)
	if _, ok := resp.Body.(exchange.Stream); ok {
		n.w.mu.Lock()
		n.w.mu.client.leave()
		n.w.mu.Unlock()
	}
	return resp
}

// Refused implements exchange.Handler.
func (n *noting) Refused(req *exchange.Request, resp *exchange.Response) {
	n.w.begin(req)
	n.Server.Refused(req, resp)
}

// begin records a request that the proxy has read.
func (w *parserDiff) begin(req *exchange.Request) {
	o := &outcome{method: req.Method, target: req.Target, query: req.Query, route: exchange.ParseRoute(req.Method, req.Path)}
	if o.route.Resource && o.route.Verb == "list" && exchange.IsWatch(req.Query) {
		o.route.Verb = "watch"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.outcomes = append(w.mu.outcomes, o)
}

// numbering records forwarded requests and numbers them.
type numbering struct {
	*parserDiff
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (n *numbering) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	n.mu.Lock()
	last := len(n.mu.outcomes) - 1
	n.mu.outcomes[last].sent = true
	r.Header.Set(numbered, fmt.Sprint(n.mu.run, ".", last))
	n.mu.Unlock()
	return n.RoundTripper.RoundTrip(r)
}

// upstream is the apiserver behind the proxy.
func (w *parserDiff) upstream(_ http.ResponseWriter, r *http.Request) {
	number := r.Header.Get(numbered)
	r.Header.Del(numbered)
	h := hear(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.astray = w.mu.astray || number == ""
	for i, o := range w.mu.outcomes {
		if fmt.Sprint(w.mu.run, ".", i) == number {
			o.heard = h
		}
	}
}

// apiserver is the server that the client talks to directly.
func (w *parserDiff) apiserver(_ http.ResponseWriter, r *http.Request) {
	h := hear(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.heard = append(w.mu.heard, h)
}

// rawExchange is the result of sending the same bytes on two connections.
type rawExchange struct {
	raw      []byte
	outcomes []*outcome
	heard    []*heard
	answers  []byte
}

// send sends bytes to both servers. The proxy receives them in pieces of this size; 0 means all
// bytes together.
func (w *parserDiff) send(tb testing.TB, raw []byte, piece int) rawExchange {
	tb.Helper()
	w.mu.Lock()
	c := newRawConn(raw, piece)
	w.mu.run++
	w.mu.client, w.mu.outcomes = c, nil
	w.mu.Unlock()
	if err := w.proxy.serve(c); err != nil {
		tb.Fatalf("%q: the proxy: %v\nanswers: %.500q", raw, err, c.answers())
	}
	x := rawExchange{raw: raw, heard: w.hearDirect(tb, raw), answers: c.answers()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.astray {
		tb.Fatal("BUG: a request is forwarded by a transport that is not numbered")
	}
	for _, o := range w.mu.outcomes {
		once := *o
		x.outcomes = append(x.outcomes, &once)
	}
	return x
}

// hearDirect sends bytes only to the apiserver.
func (w *parserDiff) hearDirect(tb testing.TB, raw []byte) []*heard {
	tb.Helper()
	w.mu.Lock()
	w.mu.heard = nil
	w.mu.Unlock()
	if err := w.direct.serve(newRawConn(raw, 0)); err != nil {
		tb.Fatalf("%q: the apiserver: %v", raw, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.heard
}

// Caches implements Feeds.
func (w *parserDiff) Caches(schema.GroupVersionResource, object.Want) bool { return true }

// Open implements Feeds.
func (w *parserDiff) Open(_ context.Context, gvr schema.GroupVersionResource, _ object.Want, _ object.Encoding, _ uint64) (read.Feed, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.outcomes[len(w.mu.outcomes)-1].opened = true
	if feed := w.feeds[gvr]; feed != nil {
		return feed, nil
	}
	return nil, read.Uncached
}

// rawFeed has a cache that does not change.
type rawFeed struct{ cache *watchcache.Cache }

// Cache implements Feed.
func (f *rawFeed) Cache() *watchcache.Cache { return f.cache }

// Warnings implements Feed.
func (f *rawFeed) Warnings() []string { return nil }

// Lost implements Feed.
func (f *rawFeed) Lost() (time.Duration, bool) { return 0, false }

// ServesConsistent implements Feed.
func (f *rawFeed) ServesConsistent() bool { return true }

func (f *rawFeed) CompressesWatches() bool { return true }

// Fresh implements Feed.
func (f *rawFeed) Fresh(context.Context, bool) (watchcache.Snapshot, error) {
	return f.cache.Snapshot()
}

// Recent implements Feed.
func (f *rawFeed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) { return s, 0, false }

func rawFeeds(tb testing.TB) map[schema.GroupVersionResource]*rawFeed {
	tb.Helper()
	const rv = 1 << 62 // later than any likely resourceVersion, so that no read waits
	feeds := map[schema.GroupVersionResource]*rawFeed{}
	for _, resource := range []object.Resource{
		{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", ListKind: "PodList", Namespaced: true},
		{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace", ListKind: "NamespaceList"},
		{GVR: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Kind: "Deployment", ListKind: "DeploymentList", Namespaced: true},
	} {
		namespace := ""
		if resource.Namespaced {
			namespace = `"namespace":"default",`
		}
		o, err := resource.ParseObject([]byte(`{"metadata":{"name":"a",` + namespace + `"uid":"u","resourceVersion":"` + strconv.Itoa(rv) + `"}}`))
		if err != nil {
			tb.Fatal(err)
		}
		cache := watchcache.New(resource, watchcache.Limits{Events: 1})
		cache.Writer().Reset([]*object.Object{o}, rv)
		feeds[resource.GVR] = &rawFeed{cache}
	}
	return feeds
}

// forwarderTo returns a forwarder to one server. wrap wraps its round trippers; it may be nil.
func forwarderTo(config *rest.Config, wrap func(http.RoundTripper) http.RoundTripper) (*forward.Forwarder, error) {
	return forward.New(config, func(adapt forward.Adaptation) (http.RoundTripper, error) {
		way, err := rest.TransportFor(adapt(config))
		if err == nil && wrap != nil {
			way = wrap(way)
		}
		return way, err
	})
}
