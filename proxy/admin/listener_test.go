package admin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// One port answers plain HTTP and HTTPS. A connection that sends nothing does not delay other
// connections, and ends with the listener.
func TestSecure(t *testing.T) {
	t.Parallel()
	with := httptest.NewUnstartedServer(nil)
	with.StartTLS() // for its certificate
	defer with.Close()
	certificate := with.TLS.Certificates[0]
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}}
	listener := secure(inner, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return served, nil }})
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if local == nil || !local.IP.IsLoopback() {
			http.Error(w, "the local address is unknown", http.StatusInternalServerError)
			return
		}
		if r.TLS != nil {
			io.WriteString(w, "TLS "+r.Proto)
			return
		}
		io.WriteString(w, "plain "+r.Proto)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()

	silent, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	roots := x509.NewCertPool()
	roots.AddCert(with.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for scheme, want := range map[string]string{"http": "plain HTTP/1.1", "https": "TLS HTTP/1.1"} {
		for range 2 { // the second on the same connection
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+inner.Addr().String(), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s: %v", scheme, err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || string(body) != want {
				t.Errorf("%s: %q, %v, want %q", scheme, body, err, want)
			}
		}
	}

	transport.CloseIdleConnections()
	if err := server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("the server ended with %v", err)
	}
	if err := silent.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the silent connection is still open: %v", err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener says %v", err)
	}
}

// The listener of an Admin is bounded, with TLS and without.
func TestListener(t *testing.T) {
	for _, config := range []*tls.Config{nil, {MinVersion: tls.VersionTLS12}} {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := newAdmin(Options{TLS: config}).Listener(inner)
		either, secured := l.(*eitherListener)
		below := l
		if secured {
			below = either.Listener
		}
		if _, ok := below.(*boundedListener); !ok || secured != (config != nil) {
			t.Errorf("with TLS %t, it is %T above %T", config != nil, l, below)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
