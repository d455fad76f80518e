package faults

import (
	"context"
	"flag"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	everything = flag.Bool("everything", false, "all scenarios, not the short set")
	watching   = flag.Int("watchers", 60, "how many watchers a scenario has")
	reportFile = flag.String("report", "", "write the table to a `FILE`")
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false) // informers log each watch that ends
	klog.SetOutput(io.Discard)
	cluster.Main(m)
}

// world is an apiserver, a proxy, and a relay on either side of it.
type world struct {
	api       *cluster.APIServer
	dynamic   dynamic.Interface
	of        resource
	up, down  *cluster.Relay // upstream of the proxy, and downstream
	proxy     *cluster.Proxy
	endpoints int // number so far

	relists float64
	lists   float64
}

const header = "drain: 500ms\n"

// newWorld starts a proxy and its relays.
func newWorld(t *testing.T, api *cluster.APIServer, of resource) *world {
	t.Helper()
	w := &world{api: api, dynamic: api.Dynamic(), of: of}
	w.up = cluster.RelayT(t, api.Address)
	kubeconfig := api.KubeconfigT(t, "https://"+w.up.Address(), api.Token)
	w.proxy = cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, Settings: header, TLS: true})
	w.down = cluster.RelayT(t, w.proxy.Address)
	return w
}

// restart ends the proxy, by SIGKILL or by SIGTERM, and starts it again.
func (w *world) restart(t *testing.T, kill bool) {
	t.Helper()
	w.count(t)
	restart(t, w.proxy, kill)
}

// process is an apiserver or a proxy.
type process interface {
	Kill()
	Stop() error
	Start(ctx context.Context) error
	Signal(signal syscall.Signal) error
}

// restart ends a process, by SIGKILL or by SIGTERM, and starts it again.
func restart(t *testing.T, what process, kill bool) {
	t.Helper()
	if kill {
		what.Kill()
	} else if err := what.Stop(); err != nil {
		t.Error(err)
	}
	cluster.MustT(t, what.Start(t.Context()))
}

// count adds the upstream requests of the current proxy.
func (w *world) count(t *testing.T) {
	t.Helper()
	m := w.proxy.MetricsT(t)
	of := fmt.Sprintf("resource=%q", w.of.Resource)
	w.relists += m.Sum("watchproxy_feed_relists_total", of)
	w.lists += m.Sum("watchproxy_feed_requests_total", of, `verb="list"`)
}

// suspend stops a process for a while, as if its machine was swapping.
func suspend(p process) {
	_ = p.Signal(syscall.SIGSTOP)
	time.Sleep(suspended)
	_ = p.Signal(syscall.SIGCONT)
}

// direct is an endpoint of the apiserver itself.
func (w *world) direct(t *testing.T) *cluster.Endpoint {
	t.Helper()
	return w.api.EndpointT(t)
}

// client is an endpoint of the proxy behind the relay, with its own connections.
func (w *world) client(t *testing.T) *cluster.Endpoint {
	t.Helper()
	return w.endpoint(t, w.down.Address())
}

// straight is an endpoint of the proxy without the relay, with its own connections.
func (w *world) straight(t *testing.T) *cluster.Endpoint {
	t.Helper()
	return w.endpoint(t, w.proxy.Address())
}

// endpoint is an endpoint of the proxy for a new client, with randomly chosen protocols.
func (w *world) endpoint(t *testing.T, address string) *cluster.Endpoint {
	t.Helper()
	w.endpoints++
	return cluster.EndpointT(t, fmt.Sprintf("client %d", w.endpoints), "https://"+address, "", w.proxy.CA)
}

// namespace creates a namespace, and returns a resourceVersion at which it is empty.
func (w *world) namespace(t *testing.T, name string) uint64 {
	t.Helper()
	w.api.NamespaceT(t, name)
	if w.of == gadgets {
		w.of.define(t.Context(), t, w)
	}
	// The apiserver knows of its history only from the oldest event that it has kept.
	anchor := w.of.object("anchor-"+name, colours[0], "0")
	if _, err := w.objects("default").Create(t.Context(), anchor, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := readList(t.Context(), w.direct(t), w.of, name)
	cluster.MustT(t, err)
	return got.rv
}

// objects returns a client for the objects of a namespace.
func (w *world) objects(namespace string) dynamic.ResourceInterface {
	return w.dynamic.Resource(w.of.GroupVersionResource).Namespace(namespace)
}

// awaken makes the proxy follow the resource.
func (w *world) awaken(ctx context.Context, s *cluster.Endpoint, namespace string) error {
	for {
		_, err := readList(ctx, s, w.of, namespace)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx)
	}
}
