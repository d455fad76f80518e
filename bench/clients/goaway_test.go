package clients

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A load balancer distributes connections, and clients keep theirs. With goawayChance, a replica that
// is added later gets some of the clients all the same. Watches that are open meanwhile stay open.
func TestClientsReachANewReplica(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	const settings = "goawayChance: 0.01\n" // as in the chart
	first, added := w.FreshProxy(t, settings), w.FreshProxy(t, settings)
	var two atomic.Bool
	var connections atomic.Int64
	balancer := cluster.RelayT(t, func() string {
		if connections.Add(1)%2 == 0 && two.Load() {
			return added.Address()
		}
		return first.Address()
	})
	ns := w.Namespace(t, "replicas")
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	var clients [4]*cluster.Endpoint
	var watches [len(clients)]*Watch
	for i := range clients {
		clients[i] = cluster.EndpointT(t, fmt.Sprint("client ", i), "https://"+balancer.Address(), "", slices.Concat(first.CA, added.CA))
		watches[i] = WatchAt(t, clients[i], path+"?watch=1&resourceVersion=0")
	}
	two.Store(true)
	cluster.Eventually(t, "the added replica gets requests", func() bool {
		for _, c := range clients {
			for range 10 {
				c.GetT(t, path+"?resourceVersion=0", nil)
			}
		}
		return added.MetricsT(t).Sum("watchproxy_requests_total", cluster.Label("resource", "configmaps")) > 0
	})
	w.CreateConfigMap(t, ns, "one", "a", "b")
	for i, o := range watches {
		cluster.Eventually(t, fmt.Sprintf("watch %d sees the event", i), func() bool { return o.Saw("ADDED", ns+"/one") })
		if err := o.Ended(); err != nil {
			t.Errorf("watch %d has ended: %v", i, err)
		}
	}
}
