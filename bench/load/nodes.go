package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/transport"

	"github.com/watchproxy/watchproxy/bench/workload"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// nodeOf returns the name of a simulated node. Only the first nodes have pods.
func nodeOf(i int) string {
	if i < workload.Nodes {
		return workload.NodeName(i)
	}
	return fmt.Sprint("node-", i)
}

// nodes is a process with the caches of many nodes. Each cache has its own connection, as if it were
// in a proxy of its own.
type nodes struct{ *process }

// newNodesCommand returns the program. It prints a line when all caches are filled, and then, for
// each line on its standard input, the number of events of the first cache.
func newNodesCommand() *cobra.Command {
	var address, token, authority string
	var count int
	cmd := &cobra.Command{Use: "nodes", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return serveNodes(cmd.Context(), address, token, []byte(authority), count)
	}}
	cmd.Flags().StringVar(&address, "address", "", "")
	cmd.Flags().StringVar(&token, "token", "", "")
	cmd.Flags().StringVar(&authority, "authority", "", "")
	cmd.Flags().IntVar(&count, "count", 0, "")
	return cmd
}

func serveNodes(ctx context.Context, address, token string, authority []byte, count int) error {
	base, err := url.Parse(address)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	metrics := upstream.NewMetrics(prometheus.NewRegistry())
	var first *watchcache.Cache
	var mu sync.Mutex
	const parallel = 16
	err = workload.Parallel(ctx, count, parallel, func(ctx context.Context, i int) error {
		transport := metrics.Client.Measure(transport.NewBearerAuthRoundTripper(token, &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		}))
		set, err := servers.New(ctx, []servers.Server{{Base: base, Transport: transport}}, metrics.Servers, metrics.Client, zap.NewNop())
		if err != nil {
			return err
		}
		scope, err := object.NewScope("", "spec.nodeName="+nodeOf(i), "")
		if err != nil {
			return err
		}
		feeds := upstream.NewFeeds(set.Client(transport, metrics.Client), set, metrics, feed.Options{
			Limits: watchcache.Limits{Age: 5 * time.Minute, Events: 100_000, Bytes: 256 << 20}, MaxProbes: 1,
			OtherScopes: []object.Scope{scope},
		}, zap.NewNop())
		f, err := feeds.Open(ctx, podResource, object.Want{Fields: fields.ParseSelectorOrDie(scope.Fields)}, object.JSON, 0)
		if err == nil && i == 0 {
			mu.Lock()
			first = f.Cache()
			mu.Unlock()
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Println("filled")
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		fmt.Println(first.Stats().Events)
	}
	return nil // all ends with the process
}

// startNodes returns when all caches are filled.
func (b *bench) startNodes(proxy *server, count int) (*nodes, error) {
	p, err := startProcess("nodes", "--address", proxy.url.String(), "--token", proxy.token, "--authority", string(b.proxyAt(proxy).CA), "--count", strconv.Itoa(count))
	if err != nil {
		return nil, err
	}
	n := &nodes{p}
	if line, err := n.out.ReadString('\n'); line != "filled\n" {
		return nil, errors.Join(fmt.Errorf("the caches of nodes are not filled: %q: %w", line, err), n.close())
	}
	return n, nil
}

// events returns the number of events of the first node's cache.
func (n *nodes) events() (count int64, err error) {
	if _, err := fmt.Fprintln(n.in); err != nil {
		return 0, err
	}
	line, err := n.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(strings.TrimSpace(line), &count)
	return count, err
}
