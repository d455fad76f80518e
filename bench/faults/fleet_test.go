package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// followed are the resources that a fleet watches. Its informers get them in turn.
var followed = []resource{
	configMaps,
	{schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "/api/v1", "ServiceAccount", "spec"},
	{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "/apis/coordination.k8s.io/v1", "Lease", "spec"},
}

const (
	fleetNamespace = "fleet"
	fleetAgent     = "fleet"
	// perConnection is the number of informers that share an HTTP/2 connection, like those of a
	// controller manager.
	perConnection = 100
	// markName is the name of an object of each resource. Its events show whether an informer is up
	// to date.
	markName  = "mark"
	markLabel = "mark"
)

// fleet is a number of client-go informers with default settings. It counts their requests.
type fleet struct {
	cancel    context.CancelFunc
	factories []informers.SharedInformerFactory
	seen      []atomic.Int64 // the mark that each informer has seen last

	// These count the requests to the proxy since the last call of forget.
	states  atomic.Int64 // syncs: lists, and watches that begin with the initial state
	resumed atomic.Int64 // watches from a resourceVersion
	gone    atomic.Int64 // answers with 410, and watches that ended with an ERROR
	failed  atomic.Int64 // requests without an answer

	mu struct {
		sync.Mutex
		open []net.Conn
	}
}

// newFleet starts informers and returns when all have synced.
func newFleet(ctx context.Context, t *testing.T, size int, to *rest.Config) *fleet {
	t.Helper()
	f := &fleet{seen: make([]atomic.Int64, size)}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel = cancel
	t.Cleanup(f.close)
	var client *kubernetes.Clientset
	for i := range size {
		if i%perConnection == 0 {
			var err error
			client, err = f.connect(to)
			cluster.MustT(t, err)
		}
		factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(fleetNamespace))
		generic, err := factory.ForResource(followed[i%len(followed)].GroupVersionResource)
		cluster.MustT(t, err)
		see := func(object any) {
			o, err := meta.Accessor(object)
			if err != nil || o.GetName() != markName {
				return
			}
			if n, err := strconv.ParseInt(o.GetLabels()[markLabel], 10, 64); err == nil {
				f.seen[i].Store(n)
			}
		}
		_, err = generic.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, is any) { see(is) }})
		cluster.MustT(t, err)
		factory.Start(running.Done())
		f.factories = append(f.factories, factory)
	}
	return f
}

func (f *fleet) connect(to *rest.Config) (*kubernetes.Clientset, error) {
	config := rest.CopyConfig(to)
	config.ContentType, config.UserAgent, config.Timeout = "application/json", fleetAgent, 0
	config.Dial = f.dial
	// There is no HTTP proxy. The function keeps the transport out of client-go's cache, so that
	// there are several connections.
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // as net/http wants it
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counting{next, f} })
	return kubernetes.NewForConfig(config)
}

func (f *fleet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mu.open = append(f.mu.open, conn)
	}
	return conn, err
}

func (f *fleet) close() {
	f.cancel()
	f.mu.Lock()
	for _, conn := range f.mu.open {
		conn.Close()
	}
	f.mu.Unlock()
	for _, factory := range f.factories {
		factory.Shutdown()
	}
}

// counting counts the requests of informers by kind and result.
type counting struct {
	http.RoundTripper
	*fleet
}

// RoundTrip implements http.RoundTripper.
func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(req)
	if err != nil {
		c.failed.Add(1)
		return nil, err
	}
	if resp.StatusCode == http.StatusGone {
		c.gone.Add(1)
	}
	switch query := req.URL.Query(); {
	case resp.StatusCode != http.StatusOK:
		c.failed.Add(1)
		return resp, err
	case query.Get("watch") == "" || query.Get("sendInitialEvents") == "true":
		c.states.Add(1)
	default:
		c.resumed.Add(1)
	}
	resp.Body = &listening{resp.Body, c.fleet}
	return resp, err
}

// listening detects whether a watch ends with an ERROR. The proxy writes an ERROR in one piece.
type listening struct {
	io.ReadCloser
	*fleet
}

// Read implements io.Reader.
func (l *listening) Read(p []byte) (n int, err error) {
	n, err = l.ReadCloser.Read(p)
	if bytes.Contains(p[:n], []byte(`{"type":"ERROR"`)) {
		l.gone.Add(1)
	}
	return n, err
}

// forget resets the counts.
func (f *fleet) forget() {
	for _, n := range []*atomic.Int64{&f.states, &f.resumed, &f.gone, &f.failed} {
		n.Store(0)
	}
}

// await waits until all informers have seen a mark.
func (f *fleet) await(ctx context.Context, mark int64) error {
	for {
		behind := 0
		for i := range f.seen {
			if f.seen[i].Load() < mark {
				behind++
			}
		}
		switch {
		case behind == 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%d of %d informers have not seen mark %d: %w", behind, len(f.seen), mark, ctx.Err())
		}
		cluster.Pause(ctx, 20*time.Millisecond)
	}
}
