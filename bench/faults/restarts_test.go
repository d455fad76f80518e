package faults

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var informing = flag.Int("informers", 200, "how many informers there are when something restarts")

const (
	fleetObjects = 50 // of each resource
	fleetWrites  = 50 * time.Millisecond
	fleetLimit   = 5 * time.Minute
)

// port has a proxy between an apiserver and informers.
type port struct {
	api     *cluster.APIServer
	dynamic dynamic.Interface
	audit   *audit
	opts    cluster.ProxyOptions
	proxy   *cluster.Proxy
	marked  int64
}

// restarting is a restart of the proxy or the apiserver, and its results.
type restarting struct {
	of   string // the process that restarts
	kill bool   // only with -everything

	asked           asked
	before, open    int // watches upstream, before and afterwards
	lists           float64
	states, gone    int64
	resumed, failed int64
}

// After a restart of the proxy or of the apiserver, informers resume from their resourceVersions.
// The cost at upstream is the same for one informer and for thousands.
func TestRestarts(t *testing.T) {
	for _, r := range []restarting{{of: "proxy"}, {of: "proxy", kill: true}, {of: "apiserver"}, {of: "apiserver", kill: true}} {
		if r.kill && !*everything {
			continue
		}
		t.Run(fmt.Sprintf("%s, killed: %t", r.of, r.kill), func(t *testing.T) {
			r.run(t)
			t.Logf("%+v", r)
			r.judge(t)
		})
	}
}

func (r *restarting) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fleetLimit)
	defer cancel()
	p := newPort(ctx, t)
	f := newFleet(ctx, t, *informing, p.proxy.RESTConfig())
	p.caughtUp(ctx, t, f)
	stop := p.keepWriting(ctx)
	defer stop()
	cluster.Pause(ctx, before)
	p.audit.since(t)
	r.before = len(p.audit.open)
	was, pid := p.listed(t), p.proxy.PID()
	f.forget()
	if r.of == "proxy" {
		restart(t, p.proxy, r.kill)
	} else {
		restart(t, audited{p.api, func() { p.audit.ended(t) }}, r.kill)
	}
	p.caughtUp(ctx, t, f)
	cluster.Pause(ctx, 2*before) // so that late informers are counted too
	stop()
	p.caughtUp(ctx, t, f)
	r.asked = p.audit.since(t)
	r.open = len(p.audit.open)
	r.states, r.resumed, r.gone, r.failed = f.states.Load(), f.resumed.Load(), f.gone.Load(), f.failed.Load()
	r.lists = p.listed(t)
	if p.proxy.PID() == pid {
		r.lists -= was
	}
}

// judge fails the test if informers or upstream were affected too much.
func (r *restarting) judge(t *testing.T) {
	t.Helper()
	feeds := len(followed)
	switch r.of {
	case "proxy":
		// A feed starts with a list, because the first informer resumes at an old resourceVersion.
		// A second, small list follows if the resource was quiet when the feed started.
		if r.asked.syncs > 0 || int(r.lists) > 2*feeds {
			t.Error("more than one sync of a resource")
		}
		if few := fewInformers(); r.gone > few || int64(r.asked.forwarded) > few {
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

// fewInformers is the number of informers that may have to begin anew, because the order in which they
// come is random: one may resume from before a new proxy's history.
func fewInformers() int64 { return int64(*informing) / 10 }

func newPort(ctx context.Context, t *testing.T) *port {
	t.Helper()
	p := &port{audit: &audit{AuditLog: cluster.AuditLog{Path: filepath.Join(t.TempDir(), "audit.log")}, open: map[string]string{}}}
	p.api = cluster.APIServerT(t, cluster.Options{AuditLog: p.audit.Path})
	p.dynamic = p.api.Dynamic()
	p.fill(ctx, t)
	p.opts = cluster.ProxyOptions{Kubeconfig: p.api.Kubeconfig, Settings: header, TLS: true}
	p.proxy = cluster.ProxyT(t, p.opts)
	return p
}

// audited is an apiserver that calls back before it starts again, when all of its watches have
// ended.
type audited struct {
	*cluster.APIServer
	ended func()
}

// Start first calls back.
func (s audited) Start(ctx context.Context) error {
	s.ended()
	return s.APIServer.Start(ctx)
}

// caughtUp writes a mark and waits until all informers have seen it.
func (p *port) caughtUp(ctx context.Context, t *testing.T, f *fleet) {
	t.Helper()
	p.mark(ctx, t)
	cluster.MustT(t, f.await(ctx, p.marked))
}

func (p *port) objects(of resource) dynamic.ResourceInterface {
	return p.dynamic.Resource(of.GroupVersionResource).Namespace(fleetNamespace)
}

// fill creates the objects that informers follow.
func (p *port) fill(ctx context.Context, t *testing.T) {
	t.Helper()
	p.api.NamespaceT(t, fleetNamespace)
	for _, of := range followed {
		for i := range fleetObjects {
			name := fmt.Sprintf("object-%d", i)
			if i == 0 {
				name = markName
			}
			if _, err := p.objects(of).Create(ctx, of.object(name, colours[0], "0"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (p *port) label(ctx context.Context, of resource, name string, n int64) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, markLabel, strconv.FormatInt(n, 10))
	_, err := p.objects(of).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// mark changes the marks, whose events show the informers' progress.
func (p *port) mark(ctx context.Context, t *testing.T) {
	t.Helper()
	p.marked++
	for _, of := range followed {
		for p.label(ctx, of, markName, p.marked) != nil {
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
			of := followed[n%int64(len(followed))]
			_ = p.label(ctx, of, fmt.Sprintf("object-%d", 1+n%(fleetObjects-1)), n) // the apiserver may be down
			cluster.Pause(ctx, fleetWrites)
		}
	})
	return func() {
		cancel()
		writing.Wait()
	}
}

// listed counts the proxy's lists since its start.
func (p *port) listed(t *testing.T) float64 {
	t.Helper()
	return p.proxy.MetricsT(t).Sum("watchproxy_feed_requests_total", `verb="list"`)
}
