package cluster

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
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Endpoint sends requests to a server without a client library, because a library would change
// unusual requests.
type Endpoint struct {
	Name  string
	URL   string
	Token string       // for requests without credentials; empty: none
	TLS   *tls.Config  // nil for plain HTTP
	Sent  atomic.Int64 // number of requests and of connections by DialT

	http1, http2 *http.Client
}

// Request is an HTTP request.
type Request struct {
	Method   string // empty: GET
	Target   string // path and query, sent unchanged
	Header   http.Header
	Body     string
	Chunked  bool // send the body in chunks, without its length
	Protocol Protocol
}

// Get returns the GET request for a target.
func Get(target string) Request { return Request{Target: target} }

// With adds a header.
func (r Request) With(name, value string) Request {
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Add(name, value)
	return r
}

// Answer is an HTTP response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// EndpointT returns the endpoint of a URL. Its connections are closed at the end of the test.
func EndpointT(tb testing.TB, name, url, token string, ca []byte) *Endpoint {
	tb.Helper()
	e := NewEndpoint(name, url, token, Trust(ca))
	tb.Cleanup(e.CloseIdle)
	return e
}

// Trust returns the TLS configuration of a client that trusts a CA, given in PEM. Without a CA it
// returns nil, for plain HTTP.
func Trust(ca []byte) *tls.Config {
	if ca == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots}
}

// NewEndpoint returns the endpoint of a URL. The caller must call CloseIdle at the end.
func NewEndpoint(name, url, token string, config *tls.Config) *Endpoint {
	return &Endpoint{Name: name, URL: url, Token: token, TLS: config, http1: client(config, false), http2: client(config, config != nil)}
}

// EndpointT returns an endpoint for the apiserver with the admin's token. It uses only HTTP/1.1,
// because the apiserver's responses are the same over HTTP/2.
func (s *APIServer) EndpointT(tb testing.TB) *Endpoint {
	tb.Helper()
	e := EndpointT(tb, "apiserver", s.URL, s.Token, s.CA)
	e.http2 = e.http1
	return e
}

// EndpointT returns an endpoint for the proxy without credentials.
func (p *Proxy) EndpointT(tb testing.TB) *Endpoint {
	tb.Helper()
	return EndpointT(tb, "proxy", p.URL, "", p.CA)
}

func client(config *tls.Config, http2 bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	const idle = 100
	return &http.Client{
		Transport: &http.Transport{
			DisableCompression:    true,
			TLSClientConfig:       config.Clone(),
			Protocols:             &protocols,
			MaxIdleConnsPerHost:   idle,
			ResponseHeaderTimeout: Limit,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// CloseIdle closes connections that are not in use.
func (e *Endpoint) CloseIdle() {
	e.http1.CloseIdleConnections()
	e.http2.CloseIdleConnections()
}

// Once makes each request use its own connection.
func (e *Endpoint) Once() {
	for _, c := range []*http.Client{e.http1, e.http2} {
		c.Transport.(*http.Transport).DisableKeepAlives = true
	}
}

// Open sends a request and returns as soon as the header of the response arrives.
func (e *Endpoint) Open(ctx context.Context, r Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, e.URL, strings.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	req.URL.Opaque, req.URL.RawQuery, _ = strings.Cut(r.Target, "?")
	req.URL.ForceQuery = strings.HasSuffix(r.Target, "?")
	if strings.HasPrefix(r.Target, "//") {
		// Net/http parses an opaque "//" as a host.
		req.URL.Path, req.URL.Opaque = req.URL.Opaque, ""
	}
	req.Header = e.Headers(r)
	if host := r.Header.Get("Host"); host != "" {
		req.Host = host
	}
	switch {
	case r.Chunked:
		req.ContentLength = -1
	case r.Body == "":
		req.Body, req.ContentLength = nil, 0
	}
	e.Sent.Add(1)
	client := e.http1
	if e.drawn(r) == HTTP2 {
		client = e.http2
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %s %.300s: %w", e.Name, r.Method, r.Target, err)
	}
	return resp, nil
}

// Headers returns the request's headers, with defaults for missing ones.
func (e *Endpoint) Headers(r Request) http.Header {
	h := http.Header{"Accept-Encoding": {"identity"}}
	if e.Token != "" {
		h.Set("Authorization", "Bearer "+e.Token)
	}
	maps.Copy(h, r.Header)
	return h
}

// Ask sends a request and reads the whole response. If ctx has no deadline, Limit limits the time.
func (e *Endpoint) Ask(ctx context.Context, r Request) (a Answer, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Limit)
		defer cancel()
	}
	resp, err := e.Open(ctx, r)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close() //nolint:errcheck // what was read is what counts
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		return a, fmt.Errorf("%s: read answer to %.300s: %w", e.Name, r.Target, err)
	}
	a.Status, a.Header = resp.StatusCode, resp.Header
	return a, nil
}

// GetT sends a GET for a target, with additional headers.
func (e *Endpoint) GetT(tb testing.TB, target string, header http.Header) Answer {
	tb.Helper()
	return e.AskT(tb, Request{Target: target, Header: header})
}

// AskT is Ask, but fails the test if there is no response.
func (e *Endpoint) AskT(tb testing.TB, r Request) Answer {
	tb.Helper()
	a, err := e.Ask(tb.Context(), r)
	MustT(tb, err)
	return a
}

// Watch is Open for a watch: any status except 200 is an error.
func (e *Endpoint) Watch(ctx context.Context, r Request) (*http.Response, error) {
	resp, err := e.Open(ctx, r)
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close() //nolint:errcheck // as in Ask
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return nil, fmt.Errorf("%s: %.300s: %s %s", e.Name, r.Target, resp.Status, body)
}

// DialT opens a connection for raw HTTP/1.1, which is closed at the end of the test.
func (e *Endpoint) DialT(tb testing.TB) (net.Conn, *bufio.Reader) {
	tb.Helper()
	e.Sent.Add(1)
	var dialer interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = &net.Dialer{}
	if e.TLS != nil {
		config := e.TLS.Clone()
		config.NextProtos = []string{"http/1.1"}
		dialer = &tls.Dialer{Config: config}
	}
	conn, err := dialer.DialContext(tb.Context(), "tcp", address(e.URL))
	MustT(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	MustT(tb, conn.SetDeadline(time.Now().Add(Limit)))
	return conn, bufio.NewReader(conn)
}

// Address returns the address of the server without the scheme.
func (e *Endpoint) Address() string { return address(e.URL) }
