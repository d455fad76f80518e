//go:build verify

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// leaseTTL is the life of an Event, and leaseCuts are the numbers of bytes of the deletions that
// pass before the relay cuts. 0 is a relay that does not cut.
const leaseTTL = 40 * time.Second

var leaseCuts = []int{0, 1500, 6000, 30_000, 200_000}

// Many Events share a lease, so etcd deletes them at one revision. A relay between apiserver and
// proxy cuts inside their deletions. Then the cache equals upstream, each watch has seen all
// deletions or got 410, and no resourceVersion has shown two values.
func TestExpiredLease(t *testing.T) {
	const n = 300
	api := cluster.APIServerT(t, cluster.Options{Flags: []string{"--event-ttl=" + leaseTTL.String()}})
	namespace := api.NamespaceT(t, "lease")
	var views []*leaseView
	for _, cut := range leaseCuts {
		views = append(views, newLeaseView(t, api, namespace, cut))
	}
	events := api.Client().CoreV1().Events(namespace)
	err := workload.Parallel(t.Context(), n, 20, func(ctx context.Context, i int) error {
		_, err := events.Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("e%03d", i)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "p"},
			Message:        strings.Repeat("x", 200),
		}, metav1.CreateOptions{})
		return err
	})
	cluster.MustT(t, err)
	for _, v := range views {
		v.begin(t, n)
	}
	direct := api.EndpointT(t)
	cluster.Eventually(t, "the lease expires", func() bool { _, names := listEvents(t, direct, namespace, ""); return len(names) == 0 })
	for _, v := range views {
		cluster.Eventually(t, fmt.Sprintf("cut after %d bytes: the cache has no ghosts", v.cut), func() bool {
			_, names := listEvents(t, v.proxy, namespace, "?resourceVersion=0")
			return len(names) == 0
		})
	}
	cluster.Pause(t.Context(), 5*time.Second) // the watches get what the caches have
	values := map[string]string{}
	for _, v := range views {
		v.end(t, n, values)
	}
	for rv, value := range values {
		if answer := direct.GetT(t, "/api/v1/namespaces/"+namespace+"/events?resourceVersionMatch=Exact&resourceVersion="+rv, nil); answer.Status == http.StatusOK {
			if _, names := eventNames(answer.Body); strings.Join(names, " ") != value {
				t.Errorf("at %s the proxy has shown [%s], upstream [%s]", rv, value, strings.Join(names, " "))
			}
		}
	}
}

// leaseView is a proxy behind a relay, a client that lists from its cache all the time, and a watch.
type leaseView struct {
	cut     int
	relay   *cluster.Relay
	proxy   *cluster.Endpoint
	path    string
	watch   *http.Response
	clients sync.WaitGroup
	stop    context.CancelFunc
	deleted map[string]int // how often the watch has seen each Event's deletion
	expired bool           // the watch got 410
	twice   []string       // resourceVersions with two values
	values  map[string]string
}

func newLeaseView(t *testing.T, api *cluster.APIServer, namespace string, cut int) *leaseView {
	t.Helper()
	v := &leaseView{cut: cut, path: "/api/v1/namespaces/" + namespace + "/events", deleted: map[string]int{}, values: map[string]string{}}
	v.relay = cluster.RelayT(t, api.Address)
	kubeconfig := api.KubeconfigT(t, "https://"+v.relay.Address(), api.Token)
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, Settings: "cache: {selfCheckInterval: 0s}\n", NoRace: true, TLS: true})
	v.proxy = proxy.EndpointT(t)
	listEvents(t, v.proxy, namespace, "?resourceVersion=0")
	return v
}

// begin starts the clients when the cache has n Events, and tells the relay to cut.
func (v *leaseView) begin(t *testing.T, n int) {
	t.Helper()
	var rv string
	cluster.Eventually(t, "the cache has all Events", func() bool {
		var names []string
		rv, names = eventNames(v.proxy.GetT(t, v.path+"?resourceVersion=0", nil).Body)
		return len(names) == n
	})
	ctx, stop := context.WithCancel(t.Context())
	v.stop = stop
	var err error
	v.watch, err = v.proxy.Watch(ctx, cluster.Get(v.path+"?watch=true&resourceVersion="+rv))
	cluster.MustT(t, err)
	v.clients.Go(func() {
		defer v.watch.Body.Close()
		for d := json.NewDecoder(v.watch.Body); ; {
			var e struct {
				Type   string
				Object struct{ Metadata metav1.ObjectMeta }
			}
			if d.Decode(&e) != nil {
				return
			}
			switch e.Type {
			case "DELETED":
				v.deleted[e.Object.Metadata.Name]++
			case "ERROR":
				v.expired = true
			}
		}
	})
	v.clients.Go(func() {
		for ; ctx.Err() == nil; cluster.Pause(ctx, 5*time.Millisecond) {
			answer, err := v.proxy.Ask(ctx, cluster.Get(v.path+"?resourceVersion=0"))
			if err != nil || answer.Status != http.StatusOK {
				continue
			}
			rv, names := eventNames(answer.Body)
			value := strings.Join(names, " ")
			if was, known := v.values[rv]; known && was != value {
				v.twice = append(v.twice, rv)
			}
			v.values[rv] = value
		}
	})
	v.clients.Go(func() { // the relay refuses connections for a second
		for ; ctx.Err() == nil; cluster.Pause(ctx, time.Second) {
			v.relay.Mend()
		}
	})
	v.relay.CutAfter(v.cut)
}

// end judges the watch and the lists, and adds what was shown to values.
func (v *leaseView) end(t *testing.T, n int, values map[string]string) {
	t.Helper()
	v.stop()
	v.clients.Wait()
	for name, times := range v.deleted {
		if times != 1 {
			t.Errorf("cut after %d bytes: the watch has seen %s deleted %d times", v.cut, name, times)
		}
	}
	if len(v.deleted) != n && !v.expired {
		t.Errorf("cut after %d bytes: the watch has seen %d of %d deletions and no 410", v.cut, len(v.deleted), n)
	}
	if len(v.twice) > 0 {
		t.Errorf("cut after %d bytes: %v had two values", v.cut, v.twice)
	}
	for rv, value := range v.values {
		if was, known := values[rv]; known && was != value {
			t.Errorf("two proxies show [%s] and [%s] at %s", was, value, rv)
		}
	}
	maps.Copy(values, v.values)
}

func listEvents(t *testing.T, from *cluster.Endpoint, namespace, query string) (rv string, names []string) {
	t.Helper()
	answer := from.GetT(t, "/api/v1/namespaces/"+namespace+"/events"+query, nil)
	if answer.Status != http.StatusOK {
		t.Fatalf("%s: %d %s", from.Name, answer.Status, answer.Body)
	}
	return eventNames(answer.Body)
}

// eventNames returns a list's resourceVersion and the sorted names of its items.
func eventNames(body []byte) (rv string, names []string) {
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(body, &list); err != nil {
		return "", []string{err.Error()}
	}
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	slices.Sort(names)
	return list.ResourceVersion, names
}
