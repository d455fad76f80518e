package conformance

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// replyLimit bounds any request that is not a watch.
const replyLimit = 30 * time.Second

// endpoint is one of the two servers under comparison, spoken to over HTTP/1.1 without a client library that would
// tidy up what is sent.
type endpoint struct {
	name  string
	base  *url.URL
	token string
	tls   *tls.Config // nil for plain HTTP
	http  *http.Client
	http2 *http.Client // for requests that ask for it
	sent  atomic.Int64 // requests
}

// newEndpoint returns the server at a URL. Token and ca are empty for one that wants none.
func newEndpoint(name, base, token string, ca []byte) (*endpoint, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	e := &endpoint{name: name, base: u, token: token}
	if u.Scheme == "https" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("no certificate in the CA of %s", base)
		}
		e.tls = &tls.Config{RootCAs: pool, NextProtos: []string{"http/1.1"}} // of bare connections
	}
	e.http, e.http2 = e.client(false), e.client(e.tls != nil)
	return e, nil
}

func (e *endpoint) client(http2 bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	config := e.tls.Clone()
	if config != nil {
		config.NextProtos = nil // as the transport says
	}
	return &http.Client{
		Transport: &http.Transport{
			DisableCompression:  true,
			TLSClientConfig:     config,
			Protocols:           &protocols,
			MaxIdleConnsPerHost: 16,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (e *endpoint) close() {
	e.http.CloseIdleConnections()
	e.http2.CloseIdleConnections()
}

// request is what a row sends.
type request struct {
	method string // empty: GET
	target string // path and query, sent as it stands
	header http.Header
	body   string
	http2  bool // where the server speaks it
}

func get(target string) request { return request{target: target} }

// with adds a header.
func (r request) with(name, value string) request {
	r.header = r.header.Clone()
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Add(name, value)
	return r
}

// reply is what came back. The body of a watch is not read.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request and reads the whole answer.
func (e *endpoint) send(ctx context.Context, r request) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	resp, err := e.open(ctx, r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, fmt.Errorf("%s: read answer to %s: %w", e.name, r.target, err)
	}
	return reply{resp.StatusCode, resp.Header, body}, nil
}

// open sends a request and returns as soon as the header of the answer is there.
func (e *endpoint) open(ctx context.Context, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, e.base.String(), strings.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.URL.Opaque, req.URL.RawQuery, _ = strings.Cut(r.target, "?")
	req.URL.ForceQuery = strings.HasSuffix(r.target, "?")
	if strings.HasPrefix(r.target, "//") {
		req.URL.Path, req.URL.Opaque = req.URL.Opaque, "" // net/http takes an opaque "//" for a host
	}
	maps.Copy(req.Header, e.headers(r))
	if r.body == "" {
		req.Body, req.ContentLength = nil, 0
	}
	e.sent.Add(1)
	client := e.http
	if r.http2 && e == proxied { // the apiserver's answers show no difference
		client = e.http2
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %s %s: %w", e.name, r.method, r.target, err)
	}
	return resp, nil
}

// headers are what a request carries unless it says otherwise.
func (e *endpoint) headers(r request) http.Header {
	h := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": {"conformance/1"}}
	if e.token != "" {
		h.Set("Authorization", "Bearer "+e.token)
	}
	maps.Copy(h, r.header)
	return h
}

// must is send for what the test itself needs.
func (e *endpoint) must(tb testing.TB, r request, status int) reply {
	tb.Helper()
	got, err := e.send(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	if got.status != status {
		tb.Fatalf("%s: %s %s: %d instead of %d\n%.2000s", e.name, r.method, r.target, got.status, status, got.body)
	}
	return got
}

// dial opens a bare connection, for rows about the framing of HTTP itself.
func (e *endpoint) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	e.sent.Add(1)
	var conn net.Conn
	var err error
	if e.tls != nil {
		conn, err = (&tls.Dialer{Config: e.tls}).DialContext(t.Context(), "tcp", e.base.Host)
	} else {
		conn, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", e.base.Host)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(replyLimit)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}
