package conformance

import (
	"context"
	"flag"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// setupLimit bounds building, starting and seeding.
const setupLimit = 5 * time.Minute

// The servers under comparison, started once for all tests. Tests that write use names of their
// own, so that they can run in any order.
var (
	apiserver *cluster.Endpoint
	proxied   *cluster.Endpoint
	admin     *cluster.Endpoint // the proxy's
)

// plain runs the suite over plain HTTP/1.1 only, as a sidecar's clients speak.
var plain = flag.Bool("plain", false, "speak plain HTTP/1.1 with the proxy, without TLS")

// tiers is how many proxies stand behind one another. The tests speak to the last.
var tiers = flag.Int("tiers", 1, "how many proxies stand behind one another")

func TestMain(m *testing.M) { cluster.Main(m, setUp) }

// setUp starts the servers and makes what rows are about.
func setUp(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), setupLimit)
	defer cancel()
	server := cluster.APIServerT(tb, cluster.Options{Flags: slices.Concat(longHistory, withBetas)})
	proxy, token := startTiers(ctx, tb, server), ""
	if *rights != "" {
		token = server.Token
	}
	speakTo(tb, server, server.Token, proxy, token)
	if err := seed(ctx); err != nil {
		tb.Fatalf("seed: %v", err)
	}
	tb.Cleanup(closeMinute)
	if err := startMinute(ctx); err != nil {
		tb.Fatal(err)
	}
}

// speakTo makes two servers those under comparison, spoken to as the users of tokens.
func speakTo(tb testing.TB, server *cluster.APIServer, token string, proxy *cluster.Proxy, proxyToken string) {
	tb.Helper()
	apiserver = server.EndpointT(tb)
	apiserver.Token = token
	proxied = cluster.EndpointT(tb, "proxy", proxy.URL, proxyToken, proxy.CA)
	admin = cluster.EndpointT(tb, "admin", proxy.AdminURL, "", nil)
	forget()
}

// longHistory are the apiserver's flags for a run that may be longer than etcd's usual history:
// rows go on asking for the resourceVersions of its beginning.
var longHistory = []string{"--etcd-compaction-interval=0"}

// settings are the proxy's for such a run, of which one user asks all at once. Where an answer
// comes from does not depend on how long anything takes, or on who else asks.
const settings = "cache: {log: {maxAge: 2h}, consistentReads: {ledger: false, forwardIfSooner: false}}\nlimits: {maxForwardsInFlight: 4000}\n"

// startTiers starts the proxies, the first in front of the apiserver, and returns the last.
func startTiers(ctx context.Context, tb testing.TB, server *cluster.APIServer) (p *cluster.Proxy) {
	tb.Helper()
	opts := cluster.ProxyOptions{Kubeconfig: server.Kubeconfig, TLS: !*plain, Settings: settings}
	if *rights != "" {
		opts.Kubeconfig, opts.Args = restrict(ctx, tb, server)
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
