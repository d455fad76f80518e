package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// setupLimit bounds building, starting and seeding.
const setupLimit = 5 * time.Minute

// The servers under comparison, started once for all tests. Tests that write use names of their own, so that they can
// run in any order.
var (
	apiserver *endpoint
	proxied   *endpoint
	admin     *endpoint // the proxy's
)

// plain runs the suite over plain HTTP/1.1 only, as a sidecar's clients speak.
var plain = flag.Bool("plain", false, "speak plain HTTP/1.1 with the proxy, without TLS")

// tiers is how many proxies stand behind one another. The tests speak to the last.
var tiers = flag.Int("tiers", 1, "how many proxies stand behind one another")

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	server, err := cluster.StartAPIServer(ctx, cluster.Options{Flags: slices.Concat(longHistory, withBetas)})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	proxies, err := startTiers(ctx, server)
	defer func() {
		for _, p := range slices.Backward(proxies) {
			err = errors.Join(err, p.Close())
		}
	}()
	if err != nil {
		return 1, err
	}
	proxy, token := proxies[len(proxies)-1], ""
	if *rights != "" {
		token = server.Token
	}

	for _, s := range []struct {
		to              **endpoint
		name, url, auth string
		ca              []byte
	}{
		{&apiserver, "apiserver", server.URL, server.Token, server.CA},
		{&proxied, "proxy", proxy.URL, token, proxy.CA},
		{&admin, "admin", proxy.AdminURL, "", nil},
	} {
		e, err := newEndpoint(s.name, s.url, s.auth, s.ca)
		if err != nil {
			return 1, err
		}
		defer e.close()
		*s.to = e
	}
	if err := seed(ctx); err != nil {
		return 1, fmt.Errorf("seed: %w", err)
	}
	defer closeMinute()
	if err := startMinute(ctx); err != nil {
		return 1, err
	}
	if code = m.Run(); code != 0 {
		fmt.Fprintf(os.Stderr, "which forms were asked for: -form-seed=%d\n", *formSeed)
	}
	return code, nil
}

// longHistory are the apiserver's flags for a run that may be longer than etcd's usual history: rows go on asking for
// the resourceVersions of its beginning.
var longHistory = []string{"--etcd-compaction-interval=0"}

// proxyArgs are the proxy's for such a run, of which one user asks all at once. Where an answer comes from does not depend on
// how long anything takes, or on who else asks.
func proxyArgs(dir string) ([]string, error) {
	path := filepath.Join(dir, "proxy.yaml")
	const config = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\ncache: {log: {maxAge: 2h}, consistentReads: {ledger: false, forwardIfSooner: false}}\nlimits: {maxForwardsInFlight: 4000}\n"
	return []string{"--config", path}, os.WriteFile(path, []byte(config), 0o600)
}

// startTiers starts the proxies, the first in front of the apiserver.
func startTiers(ctx context.Context, server *cluster.APIServer) (proxies []*cluster.Proxy, err error) {
	kubeconfig := server.Kubeconfig
	args, err := proxyArgs(server.Dir)
	if err != nil {
		return nil, err
	}
	if *rights != "" {
		var more []string
		if kubeconfig, more, err = restrict(ctx, server); err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	for range *tiers {
		p, err := cluster.StartProxy(ctx, cluster.ProxyOptions{Kubeconfig: kubeconfig, TLS: !*plain, Args: args})
		if err != nil {
			return proxies, err
		}
		proxies = append(proxies, p)
		kubeconfig = filepath.Join(server.Dir, "proxy.kubeconfig")
		if err := p.WriteKubeconfig(kubeconfig); err != nil {
			return proxies, err
		}
	}
	return proxies, nil
}
