package clients

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// burst is the number of requests that a controller manager can send at once when it rolls a
// Deployment.
const burst = 600

// If one user sends a burst of writes, the writes wait for their turn to be forwarded. The proxy
// refuses none of them, neither with the default limit nor with a low one. Reads of other users do
// not wait for the end of the burst.
func TestBurstOfWrites(t *testing.T) {
	w := sharedWorld(t)
	w.AllowBob(t)
	for name, places := range map[string]string{"default": "", "few places": "limits: {maxForwardsInFlight: 8}\n"} {
		t.Run(name, func(t *testing.T) {
			ns := w.Namespace(t, "burst")
			p := cluster.ProxyT(t, cluster.ProxyOptions{
				// With the race detector, 600 concurrent requests keep two processors busy for
				// seconds. The HTTP/2 library closes a connection if it takes more than two seconds
				// to read the settings.
				NoRace: true, Kubeconfig: w.API.Kubeconfig, TLS: true, Settings: places, Args: []string{"--authentication=delegated"},
			})
			controller, bob := p.Client(w.API.Token), p.Client(BobsToken)
			ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
			defer cancel()
			var created, gets atomic.Int64
			var writing sync.WaitGroup
			for i := range burst {
				writing.Go(func() {
					_, err := controller.CoreV1().Pods(ns).Create(ctx, cluster.NewPod(fmt.Sprintf("p-%03d", i)), metav1.CreateOptions{})
					if err != nil {
						t.Error(err)
					}
					created.Add(1)
				})
			}
			least := int64(burst) // minimum number of pods created during one get
			for before := created.Load(); before < burst; before = created.Load() {
				if _, err := bob.CoreV1().ConfigMaps("default").Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					t.Error(err)
					break
				}
				gets.Add(1)
				least = min(least, created.Load()-before)
			}
			writing.Wait()
			// Delete the pods, because other tests list the pods of all namespaces in pages of two.
			if err := w.Admin.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
			t.Logf("%d reads of another user meanwhile; the quickest waited for %d writes", gets.Load(), least)
			if places != "" && least > burst/10 { // with the default limit, all requests are upstream's to serve in turn
				t.Errorf("each of another user's reads waited for %d writes at least", least)
			}
			m := p.MetricsT(t)
			if n := m.Sum("watchproxy_limited_total"); n != 0 {
				t.Errorf("%v requests were refused", n)
			}
			if n := m.Sum("watchproxy_requests_total", `code="429"`); n != 0 {
				t.Errorf("%v requests were answered with 429", n)
			}
		})
	}
}
