package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// collection is all objects of a resource, which informers sync.
type collection struct {
	name, path string
	resource   schema.GroupVersionResource
	objects    int // according to the apiserver
	updates    int // per second, while it is measured
}

// collections creates an empty collection, a small and a large quiet one, and a busy one.
func (b *bench) collections(ctx context.Context) ([]collection, error) {
	const small, updates = 100, 200
	core := corev1.SchemeGroupVersion.WithResource
	all := []collection{
		{name: "no", path: "/apis/batch/v1/", resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}},
		{name: "quiet", path: "/api/v1/", resource: core("serviceaccounts")},
		{name: "quiet", path: "/api/v1/", resource: core("configmaps")},
		{name: "busy", path: "/api/v1/", resource: core("pods"), updates: updates},
	}
	meta := func(i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: workload.Namespaces[i%len(workload.Namespaces)], Name: fmt.Sprintf("quiet-%d", i)}
	}
	for _, quiet := range []struct {
		n      int
		create func(context.Context, int) error
	}{
		{small, func(ctx context.Context, i int) error {
			o := &corev1.ServiceAccount{ObjectMeta: meta(i)}
			_, err := b.admin.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
			return err
		}},
		{b.pods, func(ctx context.Context, i int) error {
			o := &corev1.ConfigMap{ObjectMeta: meta(i), Data: map[string]string{"routes.conf": fmt.Sprintf("%0600d", i)}}
			_, err := b.admin.CoreV1().ConfigMaps(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
			return err
		}},
	} {
		if err := workload.Parallel(ctx, quiet.n, seedLimit, quiet.create); err != nil {
			return nil, err
		}
	}
	for i := range all {
		c := &all[i]
		c.path += c.resource.Resource
		var err error
		if c.objects, err = b.direct.sync(ctx, c.path+"?"+withState); err != nil {
			return nil, err
		}
		if c.objects > 0 {
			c.name = fmt.Sprintf("%d %s", c.objects, c.name)
		}
		c.name += " " + c.resource.Resource
	}
	return all, nil
}

// informers measures how long client-go's informers take to sync: alone, at the apiserver and
// through the proxy, and in herds that start within a second through a proxy with empty caches.
//
// The informers sync as client-go does by default: with a watch that first asks for the most recent
// state. The proxy answers this watch from its cache, but first has to prove that the cache is up to
// date. Leases are written all the time. So etcd's revision is always ahead of the watch of a quiet
// resource, and that watch alone is not a proof.
func (b *bench) informers(ctx context.Context, herds []int) error {
	const writes = 20 // per second
	if err := b.makeForeign(ctx); err != nil {
		return err
	}
	all, err := b.collections(ctx)
	if err != nil {
		return err
	}
	return b.whileForeign(ctx, writes, false, func(ctx context.Context) error {
		if err := b.measureQuiet(ctx); err != nil {
			return err
		}
		for _, c := range all {
			if err := b.whileBusy(ctx, &c, func(ctx context.Context) error { return b.alone(ctx, &c) }); err != nil {
				return fmt.Errorf("informers of %s: %w", c.name, err)
			}
		}
		if err := b.chain(ctx); err != nil {
			return fmt.Errorf("a chain of proxies: %w", err)
		}
		for _, c := range all {
			for _, n := range herds {
				if c.objects == 0 || c.updates > 0 {
					continue
				}
				if err := b.herd(ctx, &c, n); err != nil {
					return fmt.Errorf("%d informers of %s: %w", n, c.name, err)
				}
			}
		}
		return nil
	})
}

// whileBusy runs do during the writes to a collection.
func (b *bench) whileBusy(ctx context.Context, c *collection, do func(context.Context) error) error {
	if c.updates == 0 {
		return do(ctx)
	}
	return workload.During(ctx, c.updates, seedLimit, func(ctx context.Context, i int) error { return b.patchPod(ctx, i, i) }, do)
}

// alone measures informers that sync one after the other, at both servers in turn. The first of each
// does not count, because it makes the proxy cache the collection.
func (b *bench) alone(ctx context.Context, c *collection) error {
	const rounds = 7
	// The pauses vary, so that they are not in step with the apiserver's periodic work. They are long
	// enough for etcd's revision to move on.
	const pause = 100 * time.Millisecond
	took := map[string][]float64{}
	var before map[string]float64
	for round := range 1 + rounds {
		var err error
		if round == 1 {
			if before, err = b.asked(ctx, b.secure.proxy); err != nil {
				return err
			}
		}
		for _, s := range []*server{b.direct, b.secure.proxy} {
			runtime.GC() // collect the garbage of the last informer
			time.Sleep(pause + rand.N(pause))
			ms, err := b.inform(ctx, s, c, "")
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if round > 0 {
				took[s.name] = append(took[s.name], ms)
			}
		}
	}
	asked, err := b.asked(ctx, b.secure.proxy)
	if err != nil {
		return err
	}
	for what, n := range before {
		if what != "ledger" { // the ledger is kept from the proxy's start
			asked[what] -= n
		}
	}
	p50, longest := map[string]float64{}, map[string]float64{}
	for name, ms := range took {
		p50[name], _, longest[name] = percentiles(ms)
	}
	name := "an informer of " + c.name + ": "
	b.add(row{Scenario: name + "p50", Clients: 1, Unit: "ms", Value: p50})
	b.add(row{Scenario: name + "max", Clients: 1, Unit: "ms", Value: longest})
	return b.judge(name, c, asked, rounds, 0)
}

// inform returns how many milliseconds a client-go informer takes to sync, with default settings
// except for the content type.
func (b *bench) inform(ctx context.Context, s *server, c *collection, contentType string) (ms float64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestLimit, fmt.Errorf("not synced within %v", requestLimit))
	defer cancel()
	config := b.api.RESTConfig()
	if s.name == ours {
		config = b.proxyAt(s).RESTConfig()
		config.BearerToken = s.token
	}
	config.ContentType = contentType
	config.Dial = (&net.Dialer{}).DialContext // otherwise client-go shares connections between clients
	began := time.Now()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	generic, err := factory.ForResource(c.resource)
	if err != nil {
		return 0, err
	}
	informer := generic.Informer()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	select {
	case <-informer.HasSyncedChecker().Done():
		ms = time.Since(began).Seconds() * 1000
		return ms, c.check(len(informer.GetStore().ListKeys()))
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// check fails if a client has not synced exactly the collection.
func (c *collection) check(has int) error {
	if has != c.objects {
		return fmt.Errorf("synced with %d objects instead of %d", has, c.objects)
	}
	return nil
}

// herd measures n watches that read the state of a collection, and start within a second through a
// proxy with empty caches. They don't decode it, because decoding would take most of the time.
func (b *bench) herd(ctx context.Context, c *collection, n int) error {
	proxy, err := b.startProxy(ctx, b.api.Kubeconfig, true)
	if err != nil {
		return err
	}
	defer b.proxyAt(proxy).Close() //nolint:errcheck // the measurement is done
	var before, after [2]time.Duration
	var errs [5]error
	before[0], errs[0] = b.direct.cpu()
	before[1], errs[1] = proxy.cpu()
	began := time.Now()
	errs[2] = workload.Parallel(ctx, n, n, func(ctx context.Context, i int) error {
		time.Sleep(time.Duration(i) * time.Second / time.Duration(n))
		objects, err := proxy.sync(ctx, c.path+"?"+withState)
		return errors.Join(err, c.check(objects))
	})
	took := time.Since(began).Seconds()
	after[0], errs[3] = b.direct.cpu()
	after[1], errs[4] = proxy.cpu()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	name := "a herd of informers of " + c.name + ": "
	b.add(row{Scenario: name + "time until all have synced", Clients: n, Unit: "s", Value: map[string]float64{ours: took}})
	b.add(row{Scenario: name + "processor time, less the apiserver's idle load", Clients: n, Unit: "s", Value: map[string]float64{
		kubeAPIServer: (after[0] - before[0]).Seconds() - b.quiet*took, ours: (after[1] - before[1]).Seconds(),
	}})
	asked, err := b.asked(ctx, proxy)
	if err != nil {
		return err
	}
	return b.judge(name, c, asked, float64(n), 1)
}

// fromCache counts the watches that a proxy has answered from its cache, and forwarded all requests
// that it has forwarded.
const fromCache, forwarded = "from cache", "forwarded"

// asked counts the requests of a proxy's feeds, by their purpose, and those of its clients.
func (b *bench) asked(ctx context.Context, s *server) (map[string]float64, error) {
	m, err := b.proxyAt(s).Metrics(ctx)
	n := map[string]float64{
		fromCache: m.Sum("watchproxy_requests_total", `verb="watch"`, `source="cache"`),
		forwarded: m.Sum("watchproxy_requests_total", `source="upstream"`),
	}
	for _, verb := range []string{"probe", "list", "side-watch", "watch", "ledger"} {
		n[verb] = m.Sum("watchproxy_feed_requests_total", cluster.Label("verb", verb))
	}
	return n, err
}

// judge reports the requests, and checks that all clients were answered from the cache. Upstream must
// have the given number of watches, one for each cache, and otherwise only requests that prove that
// the cache is up to date. While the proxy keeps a ledger, it also runs proofs for the caches of
// earlier collections if the ledger has gaps.
func (b *bench) judge(name string, c *collection, asked map[string]float64, clients, watches float64) error {
	for _, what := range slices.Sorted(maps.Keys(asked)) {
		if n := asked[what]; n > 0 && what != fromCache {
			b.add(row{Scenario: name + "requests to the apiserver: " + what, Clients: int(clients), Unit: "request", Value: map[string]float64{ours: n}})
		}
	}
	const listed = 500 // a proof may list collections of at most so many objects
	large, ledger := c.objects > listed, asked["ledger"] > 0
	var errs []error
	for what, wrong := range map[string]bool{
		"clients were not answered from the cache":        asked[fromCache] != clients,
		"requests were forwarded":                         asked[forwarded] != 0,
		"there are more or fewer watches than caches":     asked["watch"] != watches,
		"a large collection was listed":                   large && c.updates == 0 && asked["list"] != 0,
		"a small collection was not simply listed":        !large && !ledger && asked["side-watch"] != 0,
		"nothing has proved that the cache is up to date": asked["probe"]+asked["list"] == 0,
		"a client has caused more than one probe":         asked["probe"] > clients+watches && (watches > 0 || !ledger),
	} {
		if wrong {
			errs = append(errs, fmt.Errorf("%s: %v", what, asked))
		}
	}
	return errors.Join(errs...)
}

// chain measures how much later an event arrives if one more proxy stands between the apiserver and
// the watch.
func (b *bench) chain(ctx context.Context) error {
	const depth, events = 3, 100
	const leases = "/apis/coordination.k8s.io/v1/leases"
	servers := []*server{b.direct}
	kubeconfig := b.api.Kubeconfig
	for i := range depth {
		proxy, err := b.startProxy(ctx, kubeconfig, true)
		if err != nil {
			return err
		}
		if _, err := proxy.get(ctx, request{path: leases + "?resourceVersion=0"}); err != nil { // fills the cache
			return err
		}
		servers = append(servers, proxy)
		kubeconfig = filepath.Join(b.dir, fmt.Sprintf("tier-%d.kubeconfig", i))
		if err := b.writeKubeconfig(kubeconfig, proxy); err != nil {
			return err
		}
	}
	rv, err := b.resourceVersion(ctx)
	if err != nil {
		return err
	}
	var crowds []*crowd
	defer func() {
		for _, c := range crowds {
			c.close()
		}
	}()
	for _, s := range servers {
		c, err := s.watch(ctx, 1, func(int) string { return leases + "?watch=1&resourceVersion=" + rv })
		if err != nil {
			return err
		}
		crowds = append(crowds, c)
	}
	for _, c := range crowds {
		if err := c.wait(ctx, events); err != nil {
			return err
		}
	}
	for i, c := range crowds {
		c.close()
		if i == 0 {
			continue
		}
		p50, p99, _ := percentiles(c.delays(crowds[i-1].watchers[0].times))
		name := fmt.Sprintf("delay of an event at proxy %d of a chain, after the server before it: ", i)
		b.add(row{Scenario: name + "p50", Clients: 1, Unit: "ms", Value: map[string]float64{ours: p50}})
		b.add(row{Scenario: name + "p99", Clients: 1, Unit: "ms", Value: map[string]float64{ours: p99}})
	}
	return nil
}
