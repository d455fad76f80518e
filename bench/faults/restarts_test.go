package faults

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	informing = flag.Int("informers", 200, "how many informers there are when something restarts")
	again     = flag.Int("restarts", 20, "how often the apiserver restarts with -everything while its feeds' recovery is measured")
)

const (
	fleetObjects = 50 // of each resource
	fleetWrites  = 50 * time.Millisecond
	fleetLimit   = 2 * time.Minute
)

// port is a place for proxies one after another, with what they share.
type port struct {
	api     *cluster.APIServer
	dynamic dynamic.Interface
	audit   *audit
	config  *rest.Config // of clients
	listen  string
	args    []string
	dir     string // of saved caches
	proxy   *cluster.Proxy
	marked  int64
}

// restart is something that ends and begins again, and what came of it.
type restart struct {
	name  string
	short bool // part of make test
	saved bool // caches are
	do    func(*port, *testing.T)

	asked           asked
	open            int // watches upstream, afterwards
	lists, metadata float64
	states, gone    int64
	resumed, failed int64
	down, fresh     time.Duration
	resident        int64
	before          int
}

// Whoever restarts, the proxy or the apiserver: informers go on where they were, and it costs upstream the same whether
// there is one of them or thousands.
func TestRestarts(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%s, %d informers of client-go on %d HTTP/2 connections, %d resources of %d objects, a write every %v.\n\n%s\n",
		time.Now().UTC().Format(time.DateOnly), *informing, (*informing+perConnection-1)/perConnection, len(followed), fleetObjects, fleetWrites, restartHead)
	for _, r := range []restart{
		{name: "proxy restarted, caches saved", saved: true, do: (*port).stopProxy},
		{name: "proxy killed, caches saved", short: true, saved: true, do: (*port).killProxy},
		{name: "proxy restarted, nothing saved", short: true, do: (*port).stopProxy},
		{name: "apiserver restarted", short: true, do: (*port).restartServer},
		{name: "apiserver killed", do: (*port).killServer},
	} {
		if !r.short && !*everything {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			r.run(t)
			fmt.Fprintln(&table, r.row())
			t.Log(r.row())
			r.judge(t)
		})
	}
	t.Run("apiserver again and again", func(t *testing.T) {
		restarts, feeds, away := 2, 12, time.Duration(0)
		if *everything {
			restarts, feeds, away = *again, 50, 3*time.Second
		}
		fmt.Fprintf(&table, "\nThe apiserver restarts again and again: %s", measureRecovery(t, restarts, feeds, away))
	})
	report(t, table.String())
}

func (r *restart) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fleetLimit)
	defer cancel()
	p := newPort(ctx, t, r.saved)
	f := newFleet(ctx, t, *informing, p.config)
	p.mark(ctx, t)
	if err := f.await(ctx, p.marked); err != nil {
		t.Fatal(err)
	}
	p.awaitSave(t)
	stop := p.keepWriting(ctx)
	defer stop()
	lull(ctx, before)
	if _, err := p.audit.since(); err != nil {
		t.Fatal(err)
	}
	r.before = len(p.audit.open)
	was := p.metrics(t)
	f.forget()
	began := time.Now()
	r.do(p, t)
	up := time.Now()
	r.down = up.Sub(began)
	p.mark(ctx, t)
	if err := f.await(ctx, p.marked); err != nil {
		t.Fatal(err)
	}
	r.fresh = time.Since(up)
	lull(ctx, 2*before) // whoever comes late is seen
	stop()
	p.mark(ctx, t)
	if err := f.await(ctx, p.marked); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.asked, err = p.audit.since(); err != nil {
		t.Fatal(err)
	}
	r.open = len(p.audit.open)
	r.states, r.resumed, r.gone, r.failed = f.states.Load(), f.resumed.Load(), f.gone.Load(), f.failed.Load()
	is := p.metrics(t)
	if p.proxy.PID() == was.pid {
		is.lists, is.metadata = is.lists-was.lists, is.metadata-was.metadata
	}
	r.lists, r.metadata, r.resident = is.lists, is.metadata, is.resident
}

// judge fails the test for what must not be.
func (r *restart) judge(t *testing.T) {
	t.Helper()
	feeds := len(followed)
	switch {
	case r.saved:
		// Some informers may begin anew by themselves: client-go reads the state again if its connection was reset while it
		// asked, and not if it was refused.
		if r.gone > 0 || r.asked.syncs > 0 || r.lists > 0 || r.asked.forwarded > 0 {
			t.Error("a restart from saved caches was seen")
		}
	case strings.HasPrefix(r.name, "proxy"):
		// By a list, as the informer that was first has to go on from somewhere, and a small one if the resource was quiet
		// when the feed began.
		if r.asked.syncs > 0 || int(r.lists) > 2*feeds {
			t.Error("more than one sync of a resource")
		}
		if few := int64(*informing) / 100; r.gone > few || int64(r.asked.forwarded) > few { // in which order they come is chance
			t.Error("informers could not go on where they were")
		}
	default:
		if r.states+r.resumed+r.gone+r.failed > 0 {
			t.Error("watches have ended")
		}
		if r.open != feeds {
			t.Errorf("%d watches upstream of %d feeds", r.open, feeds)
		}
	}
	if r.before != feeds {
		t.Errorf("%d watches upstream of %d feeds before", r.before, feeds)
	}
}

const restartHead = `| what | s down | s until all are up to date | informers that began anew | told so by 410 | watches resumed | lists upstream | of metadata | probes | syncs | watches opened | forwarded | watches open after | MiB resident |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|`

func (r *restart) row() string {
	return fmt.Sprintf("| %s | %.1f | %.1f | %d | %d | %d | %.0f | %.0f | %d | %d | %d | %d | %d | %d |", r.name, r.down.Seconds(), r.fresh.Seconds(),
		r.states, r.gone, r.resumed, r.lists, r.metadata, r.asked.probes, r.asked.syncs, r.asked.watches, r.asked.forwarded, r.open, r.resident>>20)
}

func newPort(ctx context.Context, t *testing.T, saved bool) *port {
	t.Helper()
	dir := t.TempDir()
	p := &port{}
	auditLog := filepath.Join(dir, "audit.log")
	p.api = cluster.APIServerT(t, cluster.Options{AuditLog: auditLog})
	var err error
	if p.dynamic, err = dynamic.NewForConfig(p.api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if p.audit, err = openAudit(auditLog); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.audit.file.Close() })
	p.fill(ctx, t)

	settings := header
	if saved {
		p.dir = filepath.Join(dir, "caches")
		settings += fmt.Sprintf(persistent, p.dir)
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string][]byte{"config.yaml": []byte(settings), "tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.args = []string{
		"--kubeconfig", p.api.Kubeconfig, "--config", path("config.yaml"), "--tls-cert-file", path("tls.crt"), "--tls-private-key-file", path("tls.key"),
	}
	p.listen = "127.0.0.1:0"
	p.startProxy(t)
	p.listen = p.proxy.URL[len("https://"):]
	p.config = &rest.Config{Host: p.proxy.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: certificate}}
	return p
}

func (p *port) startProxy(t *testing.T) {
	t.Helper()
	p.proxy = cluster.ProxyT(t, cluster.ProxyOptions{Listen: p.listen, Args: p.args})
}

func (p *port) stopProxy(t *testing.T) {
	if err := p.proxy.Stop(); err != nil {
		t.Error(err)
	}
	p.startProxy(t)
}

func (p *port) killProxy(t *testing.T) {
	p.proxy.Kill()
	p.startProxy(t)
}

func (p *port) restartServer(t *testing.T) {
	if err := p.api.Stop(); err != nil {
		t.Error(err)
	}
	p.startServer(t)
}

func (p *port) killServer(t *testing.T) {
	p.api.Kill()
	p.startServer(t)
}

func (p *port) startServer(t *testing.T) {
	t.Helper()
	if err := p.audit.ended(); err != nil {
		t.Fatal(err)
	}
	if err := p.api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// awaitSave waits until the caches of all resources were saved, if they are.
func (p *port) awaitSave(t *testing.T) {
	t.Helper()
	for p.dir != "" {
		files, err := filepath.Glob(filepath.Join(p.dir, "*.cache"))
		if err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
		if len(files) == len(followed) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func fleetObject(gvr schema.GroupVersionResource, name string) *unstructured.Unstructured {
	kinds := map[string]string{"configmaps": "ConfigMap", "serviceaccounts": "ServiceAccount", "leases": "Lease"}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(), "kind": kinds[gvr.Resource], "metadata": map[string]any{"name": name},
	}}
}

func (p *port) objects(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	return p.dynamic.Resource(gvr).Namespace(fleetNamespace)
}

// fill makes what informers follow.
func (p *port) fill(ctx context.Context, t *testing.T) {
	t.Helper()
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": fleetNamespace},
	}}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if _, err := p.dynamic.Resource(namespaces).Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, gvr := range followed {
		for i := range fleetObjects {
			name := fmt.Sprintf("object-%d", i)
			if i == 0 {
				name = markName
			}
			if _, err := p.objects(gvr).Create(ctx, fleetObject(gvr, name), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (p *port) label(ctx context.Context, gvr schema.GroupVersionResource, name string, n int64) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, markLabel, strconv.FormatInt(n, 10))
	_, err := p.objects(gvr).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// mark changes the objects by which informers show how far they have come.
func (p *port) mark(ctx context.Context, t *testing.T) {
	t.Helper()
	p.marked++
	for _, gvr := range followed {
		for p.label(ctx, gvr, markName, p.marked) != nil {
			if ctx.Err() != nil {
				t.Fatal(ctx.Err())
			}
			pause(ctx)
		}
	}
}

// keepWriting changes other objects until it is told to stop.
func (p *port) keepWriting(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := int64(0); ctx.Err() == nil; n++ {
			gvr := followed[n%int64(len(followed))]
			_ = p.label(ctx, gvr, fmt.Sprintf("object-%d", 1+n%(fleetObjects-1)), n) // the apiserver may be away
			lull(ctx, fleetWrites)
		}
	})
	return func() {
		cancel()
		writing.Wait()
	}
}

// figures are the proxy's at a time.
type figures struct {
	pid             int
	lists, metadata float64
	resident        int64
}

func (p *port) metrics(t *testing.T) figures {
	t.Helper()
	m, err := p.proxy.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resident, _, err := cluster.MemoryOf(p.proxy.PID())
	if err != nil {
		t.Fatal(err)
	}
	sum := func(verb string) float64 {
		return m.Sum("watchproxy_feed_requests_total", fmt.Sprintf("verb=%q", verb))
	}
	return figures{p.proxy.PID(), sum("list"), sum("metadata"), resident}
}
