package shards

import (
	"net/http"
	"path/filepath"
	"testing"

	"k8s.io/client-go/dynamic"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m, cluster.AllAtOnce, cluster.CollectLess) }

// side is an apiserver with a proxy in front of it.
type side struct {
	server  *cluster.APIServer
	api     *cluster.Endpoint
	proxy   *cluster.Endpoint
	process *cluster.Proxy
	sources *cluster.Sources
}

// world has two apiservers on one etcd. All tests share it.
type world struct {
	on, off *side // with the feature gate, and without
	audit   string
	dynamic *dynamic.DynamicClient
	seeded  seeded
}

var sharedWorld = cluster.Shared(newWorld)

// settings make the source of each answer certain: requests wait for a cache that is being filled,
// and no list is forwarded because upstream is faster.
const settings = `
cache: {syncTimeout: 2m, consistentReads: {ledger: false, forwardIfSooner: false}}
limits: {maxForwardsInFlight: 4000}
accessLogSampling: 1
`

const views = `
views:
- {name: shards, shards: always}
- {name: configs, shards: always, resources: [configmaps], fields: ["metadata.labels"]}
- {name: labels, shards: always, fields: ["metadata.labels"]}
- {name: small, shards: always, drop: ["metadata.managedFields", "data", "spec"]}
- {name: unsharded, fields: ["metadata.labels"]}
- {name: unsharded-small, drop: ["metadata.managedFields", "data", "spec"]}
`

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{audit: filepath.Join(tb.TempDir(), "audit.log")}
	on := cluster.APIServerT(tb, cluster.Options{
		Users: tokenFile(), Flags: []string{"--etcd-compaction-interval=0", "--feature-gates=ShardedListAndWatch=true"},
	})
	off := cluster.APIServerT(tb, cluster.Options{
		Users: tokenFile(), Etcd: on.Etcd, AuditLog: w.audit, Flags: []string{"--etcd-compaction-interval=0"},
	})
	w.on, w.off = newSide(tb, on, settings), newSide(tb, off, settings+views)
	w.dynamic = on.Dynamic()
	w.prepare(tb)
	tb.Cleanup(func() { w.checkAudit(tb) })
	return w
}

func newSide(tb testing.TB, server *cluster.APIServer, settings string) *side {
	tb.Helper()
	p := cluster.ProxyT(tb, cluster.ProxyOptions{Kubeconfig: server.Kubeconfig, TLS: true, Settings: settings})
	return &side{
		server: server, api: server.EndpointT(tb), process: p,
		proxy: cluster.EndpointT(tb, "proxy", p.URL, "", p.CA), sources: &cluster.Sources{Path: p.LogFile()},
	}
}

// The kinds of requests, which the audit log tells apart by their User-Agent.
const (
	direct = "direct"
	usual  = "usual"   // through a proxy, without a view
	inView = "in-view" // below /views
)

// as sets the User-Agent of a request.
func as(kind string, r cluster.Request) cluster.Request { return r.With("User-Agent", kind) }

// below returns a request in a view.
func below(view string, r cluster.Request) cluster.Request {
	r.Target = "/views/" + view + r.Target
	return as(inView, r)
}

// way is how a request reaches an apiserver. Its answers must be those of the reference.
type way struct {
	name      string
	to        *side
	view      string // empty for none
	reference *cluster.Endpoint
}

// ways are the ways to compare. The view's reference is the apiserver with the feature gate.
func (w *world) ways() []way {
	return []way{
		{"proxy with the gate", w.on, "", w.on.api},
		{"view", w.off, "shards", w.on.api},
		{"proxy without the gate", w.off, "", w.off.api},
	}
}

// request returns a request on the way.
func (y way) request(r cluster.Request) cluster.Request {
	if y.view == "" {
		return as(usual, r)
	}
	return below(y.view, r)
}

// mustT sends a request that must succeed.
func mustT(tb testing.TB, e *cluster.Endpoint, r cluster.Request) cluster.Answer {
	tb.Helper()
	a, err := patient(tb.Context(), e, r)
	if err != nil {
		tb.Fatal(err)
	}
	if a.Status != http.StatusOK {
		tb.Fatalf("%s: %s: %d %.500s", e.Name, r.Target, a.Status, a.Body)
	}
	return a
}
