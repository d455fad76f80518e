package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// BenchmarkForward forwards gets one after another over a connection. It compares the time that the
// proxy adds with the time that Go's own ReverseProxy adds, with the same upstream and the same
// transport.
func BenchmarkForward(b *testing.B) {
	body := strings.Repeat("x", 3500)
	behind := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}))
	behind.EnableHTTP2 = true
	behind.StartTLS()
	defer behind.Close()
	config := &rest.Config{Host: behind.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	forwards, err := forwarderTo(config, nil)
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(forwardsAll{}, forwards, newStore(b, 1<<20), Options{Limits: testLimits(), AnyHost: true}, metrics.New(prometheus.NewRegistry()), zap.NewNop())
	ours, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s.options.Load().TLS = behind.TLS.Clone()
	s.options.Load().TLS.NextProtos = []string{"http/1.1"}
	go s.Serve(b.Context(), ours)

	way, err := rest.TransportFor(config)
	if err != nil {
		b.Fatal(err)
	}
	target, _ := url.Parse(behind.URL)
	plain := httptest.NewUnstartedServer(&httputil.ReverseProxy{Transport: way, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	plain.StartTLS()
	defer plain.Close()
	for _, to := range []struct{ name, address string }{
		{"upstream", behind.Listener.Addr().String()}, {"ReverseProxy", plain.Listener.Addr().String()}, {"proxy", ours.Addr().String()},
	} {
		b.Run(to.name, func(b *testing.B) {
			c, err := tls.Dial("tcp", to.address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // nothing is secret
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			in := bufio.NewReader(c)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.WriteString(c, "GET /api/v1/namespaces/a/pods/b HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: application/json\r\n\r\n"); err != nil {
					b.Fatal(err)
				}
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(body)) {
					b.Fatal(n, err)
				}
			}
		})
	}
}
