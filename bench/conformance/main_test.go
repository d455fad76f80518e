package conformance

import (
	"context"
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// setupLimit limits the time to build, start and seed the servers.
const setupLimit = 5 * time.Minute

// The servers to compare. They are started once for all tests. Tests that write use unique names,
// so they can run in any order.
var (
	apiserver *cluster.Endpoint
	proxied   *cluster.Endpoint
	admin     *cluster.Endpoint // the proxy's admin address
	answers   *accessLog        // the proxy's
)

// tiers is the number of proxies in a row. The tests send requests to the last proxy.
var tiers = flag.Int("tiers", 1, "how many proxies stand behind one another")

func TestMain(m *testing.M) { cluster.Main(m, cluster.ManyAtOnce, cluster.CollectLess, setUp) }

// setUp starts the servers and creates the objects that rows read.
func setUp(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), setupLimit)
	defer cancel()
	var err error
	if minor, err = cluster.KubernetesMinor(); err != nil {
		tb.Fatal(err)
	}
	server := cluster.APIServerT(tb, cluster.Options{Flags: slices.Concat(longHistory, since(35, withBetas, withBetas134))})
	suite, inParts, apiserver = server, *scoped, server.EndpointT(tb)
	for _, s := range []func(context.Context) error{createNamespaces, defineCustom} {
		if err := s(ctx); err != nil {
			tb.Fatal(err)
		}
	}
	createKinds(tb)
	proxy, token := startTiers(ctx, tb, server), ""
	if *rights != "" {
		token = server.Token
	}
	speakTo(tb, server, server.Token, proxy, token)
	if err := seed(ctx); err != nil {
		tb.Fatalf("seed: %v", err)
	}
	keepBookmarks(tb, apiserver)
}

// keepBookmarks reads the most recent state of collections from time to time. Each read makes the
// apiserver ask etcd for the progress of the collection, so that its watches get bookmarks. A quiet
// collection would have no bookmarks here, because etcd does not report its progress unasked. The
// proxy would take such a stream for broken, and would warn its clients until the next stream is
// open.
func keepBookmarks(tb testing.TB, server *cluster.Endpoint) {
	tb.Helper()
	const pause = 20 * time.Second // there is a bookmark about once a minute
	ctx, cancel := context.WithCancel(tb.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ; ctx.Err() == nil; cluster.Pause(ctx, pause) {
			for _, c := range slices.Concat(collections, others) {
				_, _ = server.Ask(ctx, get(c.all()+"?labelSelector=nobody"))
			}
		}
	})
	tb.Cleanup(func() {
		cancel()
		reading.Wait()
	})
}

// minor is the version of the apiserver: 36 for 1.36.
var minor int

// since returns now if the apiserver has at least a version, and before otherwise.
func since[T any](version int, now, before T) T {
	if minor >= version {
		return now
	}
	return before
}

// suite is the apiserver of all tests that do not start their own.
var suite *cluster.APIServer

// speakTo selects the two servers to compare, and the tokens to use.
func speakTo(tb testing.TB, server *cluster.APIServer, token string, proxy *cluster.Proxy, proxyToken string) {
	tb.Helper()
	apiserver = server.EndpointT(tb)
	apiserver.Token = token
	proxied = cluster.EndpointT(tb, "proxy", proxy.URL, proxyToken, proxy.CA)
	admin = cluster.EndpointT(tb, "admin", proxy.AdminURL, "", nil)
	answers = &accessLog{path: proxy.LogFile()}
	answers.mu.lines = map[string][]byte{}
}

// longHistory has the apiserver's flags for runs that may be longer than etcd's usual history,
// because rows use resourceVersions from the beginning of the run.
var longHistory = []string{"--etcd-compaction-interval=0"}

// settings are the proxy's settings for such runs, in which one user sends all requests. With these
// settings, the source of a response does not depend on timing or on other requests: requests wait
// for a cache that is being filled. Only lists of collections of more than a megabyte are forwarded
// until the cache is proved up to date; rows then ask again. The access log tells the source of each
// response.
const settings = "cache: {syncTimeout: 2m, log: {maxAge: 2h}}\nlimits: {maxForwardsInFlight: 4000}\naccessLogSampling: 1\n"

// restricted is the kubeconfig of the account of -rbac.
var restricted string

// startTiers starts the proxies, the first proxy in front of the apiserver, and returns the last
// proxy.
func startTiers(ctx context.Context, tb testing.TB, server *cluster.APIServer) (p *cluster.Proxy) {
	tb.Helper()
	opts := cluster.ProxyOptions{Kubeconfig: server.Kubeconfig, TLS: true, Settings: settings + settingsOfViews()}
	if *rights != "" {
		if restricted == "" {
			restricted = restrict(ctx, tb, server)
		}
		opts.Kubeconfig, opts.Args = restricted, []string{"--authentication", "delegated"}
	}
	if *scoped {
		scopes := nodeScopes
		if *rights != "" {
			scopes = rightsScopes
		}
		opts.Settings = strings.Replace(opts.Settings, "cache: {", "cache: {"+scopes+", ", 1)
	}
	for range *tiers {
		p = cluster.ProxyT(tb, opts)
		opts.Kubeconfig = filepath.Join(server.Dir, "proxy.kubeconfig")
		if err := p.WriteKubeconfig(opts.Kubeconfig); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}
