package cluster

import "testing"

// APIServerT starts an apiserver that ends with the test.
func APIServerT(tb testing.TB, opts Options) *APIServer {
	tb.Helper()
	s, err := StartAPIServer(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
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
	if err != nil {
		tb.Fatal(err)
	}
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

// KubectlT returns the path of bin/kubectl.
func KubectlT(tb testing.TB) string {
	tb.Helper()
	path, err := Kubectl()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}
