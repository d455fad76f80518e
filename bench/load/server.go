package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// server is one of the compared servers.
type server struct {
	streams int  // watches on a connection over HTTP/2; 0 for HTTP/1.1
	gzip    bool // watches accept gzip
	name    string
	url     *url.URL
	tls     *tls.Config // nil for plain HTTP
	token   string
	cpu     func() (time.Duration, error) // used so far
	pid     int
}

func newServer(name, address string, ca []byte, token string, cpu func() (time.Duration, error), pid int) (*server, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("address of %s: %w", name, err)
	}
	s := &server{name: name, url: u, token: token, cpu: cpu, pid: pid}
	if u.Scheme == "https" {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		s.tls = &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS13}
		if name == kubeAPIServer {
			s.tls.ServerName = u.Hostname()
		}
	}
	return s, nil
}

// client is one connection to a server, for HTTP/1.1. It parses as little of a response as
// possible, because clients share the processors with the servers.
type client struct {
	server *server
	conn   net.Conn
	cc     *http2.ClientConn //nolint:staticcheck // as client-go has it; nil for HTTP/1.1
	from   *bufio.Reader
	buf    []byte
}

const (
	readBuffer = 256 << 10
	// requestLimit limits the time of one request. The apiserver needs seconds for a list, and more
	// under load.
	requestLimit = 2 * time.Minute
)

func (s *server) dial(ctx context.Context, buffer int) (*client, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", s.url.Host)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	conn = counted{conn}
	if s.tls != nil {
		secured := tls.Client(conn, s.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		conn = secured
	}
	if s.streams > 0 {
		cc, err := s.two(conn)
		return &client{server: s, conn: conn, cc: cc, buf: make([]byte, buffer)}, err
	}
	return &client{server: s, conn: conn, from: bufio.NewReaderSize(conn, 4<<10), buf: make([]byte, buffer)}, nil
}

// received counts the bytes that all clients have read from their sockets.
var received atomic.Int64

type counted struct{ net.Conn }

// Read implements net.Conn.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	received.Add(int64(n))
	return n, err
}

func (c *client) close() { _ = c.conn.Close() }

// request is an HTTP request.
type request struct {
	path   string   // with query; each request replaces NUMBER with another number
	pages  []string // further paths, which follow in turn
	accept string   // empty: JSON
	gzip   bool
	method string // empty: GET
	body   string
}

var numbers atomic.Int64

// send sends a request and returns when the response's header has arrived.
func (c *client) send(r request) (*http.Response, error) {
	r.method, r.accept = cmp.Or(r.method, http.MethodGet), cmp.Or(r.accept, "application/json")
	number := numbers.Add(1)
	path := strings.ReplaceAll(r.path, "NUMBER", strconv.FormatInt(number, 10))
	if at := number % int64(len(r.pages)+1); at > 0 {
		path = r.pages[at-1]
	}
	if c.cc != nil {
		resp, err := c.send2(r, path)
		return c.checked(r, resp, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\n", r.method, path, r.accept)
	if c.server.token != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", c.server.token)
	}
	if r.gzip {
		b.WriteString("Accept-Encoding: gzip\r\n")
	}
	if r.body != "" {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(r.body))
	}
	b.WriteString("\r\n" + r.body)
	if err := c.conn.SetDeadline(time.Now().Add(requestLimit)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.server.name, r.path, err)
	}
	resp, err := http.ReadResponse(c.from, nil)
	return c.checked(r, resp, err)
}

// checked returns a response if its code and encoding are as expected.
func (c *client) checked(r request, resp *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.server.name, r.path, err)
	}
	if resp.StatusCode/100 != 2 {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, fmt.Errorf("%s: %s: %s: %s", c.server.name, r.path, resp.Status, body)
	}
	if got := resp.Header.Get("Content-Encoding") == "gzip"; got != r.gzip {
		return nil, fmt.Errorf("%s: %s: compressed: %t, want %t", c.server.name, r.path, got, r.gzip)
	}
	return resp, nil
}

// ask sends a request, reads the whole response, and returns its length.
func (c *client) ask(r request) (n int64, err error) {
	resp, err := c.send(r)
	if err != nil {
		return 0, err
	}
	n, err = io.CopyBuffer(discard{}, struct{ io.Reader }{resp.Body}, c.buf)
	if err != nil {
		return n, fmt.Errorf("%s: %s: %w", c.server.name, r.path, err)
	}
	return n, nil
}

// discard is io.Discard without its own small buffers.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// get sends one request over its own connection and returns the response.
func (s *server) get(ctx context.Context, r request) ([]byte, error) {
	c, err := s.dial(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer c.close()
	resp, err := c.send(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.name, r.path, err)
	}
	return body, nil
}
