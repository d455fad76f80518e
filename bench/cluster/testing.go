package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// MustT fails the test if there is an error.
func MustT(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// APIServerT starts an apiserver that ends with the test.
func APIServerT(tb testing.TB, opts Options) *APIServer {
	tb.Helper()
	s, err := StartAPIServer(tb.Context(), opts)
	MustT(tb, err)
	tb.Cleanup(func() {
		log := s.Log()
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("end of the apiserver's log:\n%s", tail(log))
		}
	})
	return s
}

// ProxyT starts a proxy that ends with the test.
func ProxyT(tb testing.TB, opts ProxyOptions) *Proxy {
	tb.Helper()
	p, err := StartProxy(tb.Context(), opts)
	MustT(tb, err)
	tb.Cleanup(func() {
		log := p.Log()
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("end of watchproxy's log:\n%s", tail(log))
		}
	})
	return p
}

// NamespaceT creates a namespace. The namespace is never removed, because no controller runs that
// could empty it.
func (s *APIServer) NamespaceT(tb testing.TB, name string) string {
	tb.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.Client().CoreV1().Namespaces().Create(tb.Context(), ns, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	return name
}

// names counts the calls of UniqueName by name.
var names struct {
	sync.Mutex
	given map[string]int
}

// UniqueName adds a number to a name, so that a test can be repeated in the same cluster. Names are
// not random, because choices by the seed depend on names (see Draw).
func UniqueName(name string) string {
	names.Lock()
	defer names.Unlock()
	if names.given == nil {
		names.given = map[string]int{}
	}
	names.given[name]++
	return fmt.Sprintf("%s-%d", name, names.given[name])
}

// KubectlT returns the path of bin/kubectl.
func KubectlT(tb testing.TB) string {
	tb.Helper()
	path, err := Kubectl()
	MustT(tb, err)
	return path
}

// MetricsT returns the proxy's metrics.
func (p *Proxy) MetricsT(tb testing.TB) Metrics {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Limit)
	defer cancel()
	m, err := p.Metrics(ctx)
	MustT(tb, err)
	return m
}

// AdminT sends a GET to the proxy's admin address.
func (p *Proxy) AdminT(tb testing.TB, path string) Answer {
	tb.Helper()
	e := NewEndpoint("admin", p.AdminURL, "", nil)
	defer e.CloseIdle()
	return e.GetT(tb, path, nil)
}

// MetricsT returns the apiserver's metrics.
func (s *APIServer) MetricsT(tb testing.TB) Metrics {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Limit)
	defer cancel()
	text, err := s.Client().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		tb.Fatalf("cannot read the apiserver's metrics: %v", err)
	}
	return Metrics(text)
}

// CachedT reports whether the proxy has a filled cache of a resource.
func (p *Proxy) CachedT(tb testing.TB, resource string) bool {
	tb.Helper()
	return p.MetricsT(tb).Sum("watchproxy_feed_synced", Label("resource", resource)) > 0
}

// Client returns a client of the proxy. It sends the token if the token is not empty.
func (p *Proxy) Client(token string) *kubernetes.Clientset {
	config := p.RESTConfig()
	config.BearerToken = token
	return kubernetes.NewForConfigOrDie(config)
}
