package outage

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// creator creates objects with generated names, so that a write that is executed twice makes two
// objects.
type creator struct {
	acknowledged, failed atomic.Int64
	sent                 sync.Map // the label of each write, to whether it was acknowledged
}

// run creates objects with some clients until ctx ends. Each client has its own connection.
func (c *creator) run(ctx context.Context, t *testing.T, config *rest.Config, namespace string) {
	t.Helper()
	const writers = 40
	var running sync.WaitGroup
	for writer := range writers {
		own := rest.CopyConfig(config)
		own.QPS, own.Dial = -1, (&net.Dialer{}).DialContext
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			t.Error(err)
			return
		}
		running.Go(func() {
			const pause = 20 * time.Millisecond
			for i := 0; ctx.Err() == nil; i++ {
				cluster.Pause(ctx, pause)
				label := fmt.Sprintf("%d-%d", writer, i)
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-", Labels: map[string]string{"write": label}}}
				_, err := client.CoreV1().ConfigMaps(namespace).Create(context.WithoutCancel(ctx), object, metav1.CreateOptions{})
				c.sent.Store(label, err == nil)
				if err == nil {
					c.acknowledged.Add(1)
					continue
				}
				t.Logf("%s, write %s: %v", namespace, label, err)
				c.failed.Add(1)
			}
		})
	}
	running.Wait()
}

// check compares the writes with the objects that exist.
func (c *creator) check(t *testing.T, w *clients.World, namespace string) {
	t.Helper()
	list, err := w.Admin.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "write"})
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]int{}
	for i := range list.Items {
		objects[list.Items[i].Labels["write"]]++
	}
	c.sent.Range(func(label, acknowledged any) bool {
		if n := objects[label.(string)]; n > 1 || n == 0 && acknowledged.(bool) {
			t.Errorf("%s, write %s: acknowledged %t, %d objects", namespace, label, acknowledged, n)
		}
		return true
	})
}

// Two apiservers are restarted in turn, and end connections at random, while clients write and watch
// through the proxy. No write is lost or executed twice, writes fail at most as often as those of
// clients that are connected directly, and each watch sees each change once.
func TestWritesThroughRestarts(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	servers, options := twoServers(t, w, cluster.Options{Grace: 10 * time.Second, Flags: []string{"--goaway-chance=0.01"}})
	w.Proxy = cluster.ProxyT(t, options)
	crowd := newCrowd(t, w)
	writer := startWriter(t, w)
	writer.proceed(t, 10)

	// The direct clients' load balancer knows at once which server is stopped.
	var turn atomic.Int64
	relay := cluster.RelayT(t, func() string { return servers[turn.Load()].Address() })
	direct := servers[0].RESTConfig()
	direct.BearerToken = w.API.Token // both servers know it
	direct.Host, direct.TLSClientConfig = "https://"+relay.Address(), rest.TLSClientConfig{Insecure: true}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var creators [2]creator
	namespaces := [2]string{w.Namespace(t, "direct"), w.Namespace(t, "proxied")}
	var running sync.WaitGroup
	for i, config := range []*rest.Config{direct, w.Proxy.RESTConfig()} {
		running.Go(func() { creators[i].run(ctx, t, config, namespaces[i]) })
	}
	proceed := func() {
		t.Helper()
		for i := range creators {
			before := creators[i].acknowledged.Load()
			cluster.Eventually(t, "writes proceed in "+namespaces[i], func() bool { return creators[i].acknowledged.Load() > before+200 })
		}
	}
	for i := range 4 {
		proceed()
		server := servers[i%2]
		turn.Store(int64(1 - i%2))
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
		proceed()
		start(t, server)
		cluster.Eventually(t, "the server is usable again", func() bool {
			return w.Proxy.MetricsT(t).Sum("watchproxy_upstream_server_usable", cluster.Label("server", server.Address())) == 1
		})
	}
	cancel()
	running.Wait()
	for i := range creators {
		creators[i].check(t, w, namespaces[i])
		t.Logf("%s: %d writes, %d failed", namespaces[i], creators[i].acknowledged.Load(), creators[i].failed.Load())
	}
	if creators[1].failed.Load() > creators[0].failed.Load() {
		t.Error("more writes failed through the proxy than directly")
	}
	crowd.check(t, w, writer)
}
