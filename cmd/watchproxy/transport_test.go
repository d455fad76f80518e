package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// The proxy limits how much of a response upstream may send ahead, regardless of the wrapping of
// the transport.
func TestStreamWindow(t *testing.T) {
	// The server's certificate is used below.
	lender := httptest.NewTLSServer(http.NotFoundHandler())
	defer lender.Close()
	for name, change := range map[string]func(*rest.Config){
		"plain":   func(*rest.Config) {},
		"token":   func(rc *rest.Config) { rc.BearerToken = "token" },
		"as":      func(rc *rest.Config) { rc.Impersonate.UserName = "somebody" },
		"wrapped": func(rc *rest.Config) { rc.Wrap(func(rt http.RoundTripper) http.RoundTripper { return rt }) },
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			c := tls.Server(there, &tls.Config{Certificates: lender.TLS.Certificates, NextProtos: []string{http2.NextProtoTLS}}) //nolint:gosec // a test
			told := make(chan uint32, 1)
			go func() {
				defer close(told)
				defer c.Close()
				if _, err := io.CopyN(io.Discard, c, int64(len(http2.ClientPreface))); err != nil {
					return
				}
				frame, err := http2.NewFramer(c, c).ReadFrame()
				if settings, ok := frame.(*http2.SettingsFrame); ok && err == nil {
					window, _ := settings.Value(http2.SettingInitialWindowSize)
					told <- window
				}
			}()
			dial := func(context.Context, string, string) (net.Conn, error) { return here, nil }
			rc := &rest.Config{Host: "https://localhost", Dial: dial, TLSClientConfig: rest.TLSClientConfig{Insecure: true, NextProtos: []string{http2.NextProtoTLS}}}
			change(rc)
			transport, err := transportFor(rc, streamWindow(0), client.NewMetrics(prometheus.NewRegistry()))
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rc.Host, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := transport.RoundTrip(req); err == nil { // the server only reads the settings; it never responds
				resp.Body.Close()
			}
			if window := <-told; int(window) != streamWindow(0) {
				t.Errorf("upstream may send %d bytes ahead, want %d", window, streamWindow(0))
			}
		})
	}
}

// Over HTTP/1.1, the transport itself limits the headers of a response. The error's text is the one
// that package forward looks for.
func TestLongResponseHeaders(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("A", strings.Repeat("a", 2*forward.HeaderMax))
	}))
	defer server.Close()
	rc := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	forwarder, err := forward.New(rc, func(adapt forward.Adaptation) (http.RoundTripper, error) {
		return transportFor(adapt(rc), streamWindow(0), client.NewMetrics(prometheus.NewRegistry()))
	})
	if err != nil {
		t.Fatal(err)
	}
	req := &exchange.Request{Method: http.MethodGet, Target: "/api", Header: http.Header{}, Client: exchange.Nobody{}}
	ctx := t.Context()
	resp := forwarder.Send(ctx, ctx, ctx, req, &forward.Attempt{Relayed: true})
	if resp.Status != http.StatusBadGateway || !strings.Contains(resp.Failure.Message, "too long") {
		t.Errorf("%d %v", resp.Status, resp.Failure)
	}
}
