package views

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

func TestMain(m *testing.M) { cluster.Main(m, cluster.ManyAtOnce, cluster.CollectLess) }

// world has the servers, and the resources with their views. All tests share it.
type world struct {
	api     *cluster.Endpoint
	proxy   *cluster.Endpoint
	ca      []byte // of the proxy
	all     []*resource
	sources *sources
}

var sharedWorld = cluster.Shared(newWorld)

// betas enables resources that are off by default.
var betas = []string{
	"--feature-gates=ClusterTrustBundle=true,PodCertificateRequest=true",
	"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true,certificates.k8s.io/v1beta1/podcertificaterequests=true",
}

// settings make the source of each answer certain: requests wait for a cache that is being filled.
const settings = "cache: {syncTimeout: 2m}\n" +
	"limits: {maxForwardsInFlight: 4000}\naccessLogSampling: 1\nviews: "

func newWorld(tb testing.TB) *world {
	tb.Helper()
	server := cluster.APIServerT(tb, cluster.Options{Flags: append([]string{"--etcd-compaction-interval=0"}, betas...)})
	w := &world{api: server.EndpointT(tb)}
	w.create(tb)
	w.patch(tb)
	var configured []any
	for _, r := range w.all {
		answer := w.mustT(tb, w.api, cluster.Get(r.path()))
		whole, err := decode(answer.Body)
		if err != nil {
			tb.Fatal(err)
		}
		r.views = drawViews(r, at(whole, "items").(list), rand.New(rand.NewPCG(cluster.Seed(), seedOf(r.path()))))
		for _, v := range r.views {
			configured = append(configured, v.settings())
		}
	}
	views, err := json.Marshal(configured)
	if err != nil {
		tb.Fatal(err)
	}
	proxy := cluster.ProxyT(tb, cluster.ProxyOptions{Kubeconfig: server.Kubeconfig, TLS: true, Settings: settings + string(views) + "\n"})
	w.proxy = cluster.EndpointT(tb, "proxy", proxy.URL, server.Token, proxy.CA)
	w.ca = proxy.CA
	w.sources = &sources{Sources: cluster.Sources{Path: proxy.LogFile()}}
	tb.Logf("%d views of %d resources", len(configured), len(w.all))
	return w
}

// seedOf makes the draws of a resource independent of the other resources.
func seedOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}

// settings returns a view as the configuration has it.
func (v *view) settings() any {
	var paths []string
	for _, p := range v.paths {
		paths = append(paths, p.String())
	}
	verb := "fields"
	if v.drops {
		verb = "drop"
	}
	return map[string]any{"name": v.name, "resources": []string{v.of.configured()}, verb: paths}
}

// at returns the address of a request in the view.
func (v *view) at(target string) string { return "/views/" + v.name + target }

// mustT sends a request that must succeed.
func (w *world) mustT(tb testing.TB, e *cluster.Endpoint, r cluster.Request) cluster.Answer {
	tb.Helper()
	answer, err := ask(tb.Context(), e, r)
	if err != nil {
		tb.Fatal(err)
	}
	return answer
}

// ask sends a request that must succeed.
func ask(ctx context.Context, e *cluster.Endpoint, r cluster.Request) (cluster.Answer, error) {
	answer, err := e.Ask(ctx, r)
	if err == nil && answer.Status/100 != 2 {
		err = &refusedError{answer.Status, fmt.Sprintf("%s: %s %s: %d %.1000s", e.Name, r.Method, r.Target, answer.Status, answer.Body)}
	}
	return answer, err
}

// refusedError is the error of a request that was refused.
type refusedError struct {
	status int
	text   string
}

// Error implements error.
func (e *refusedError) Error() string { return e.text }

// write sends JSON to the apiserver.
func (w *world) write(ctx context.Context, method, target string, body any) (cluster.Answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return cluster.Answer{}, err
	}
	mime := "application/json"
	if method == http.MethodPatch {
		mime = "application/merge-patch+json"
	}
	return ask(ctx, w.api, cluster.Request{Method: method, Target: target, Body: string(text)}.With("Content-Type", mime))
}

// forEach calls do for each resource, some at a time.
func (w *world) forEach(tb testing.TB, all []*resource, do func(ctx context.Context, r *resource) error) {
	tb.Helper()
	const atOnce = 8
	errs := make([]error, len(all))
	_ = workload.Parallel(tb.Context(), len(all), atOnce, func(ctx context.Context, i int) error {
		if err := do(ctx, all[i]); err != nil {
			errs[i] = fmt.Errorf("%s: %w", all[i].name(), err)
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

// find returns a resource.
func (w *world) find(tb testing.TB, name string) *resource {
	tb.Helper()
	i := slices.IndexFunc(w.all, func(r *resource) bool { return r.name() == name })
	if i < 0 {
		tb.Fatalf("the apiserver has no %s", name)
	}
	return w.all[i]
}

// sentinels returns the sentinels in a text.
func sentinels(text []byte) map[string]bool {
	found := map[string]bool{}
	for rest := string(text); ; {
		begin := strings.Index(rest, sentinel)
		if begin < 0 {
			return found
		}
		rest = rest[begin:]
		end := strings.IndexFunc(rest, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') })
		if end < 0 {
			end = len(rest)
		}
		found[rest[:end]] = true
		rest = rest[end:]
	}
}

const sentinel = "sentinel-"
