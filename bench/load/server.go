package main

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// server is one of the compared servers.
type server struct {
	name    string
	url     string
	watches string // the URL for watches, which differs only at the floor
	ca      []byte
	token   string
	process interface {
		CPU() (time.Duration, error)
		PID() int
	}
	proxy  *cluster.Proxy // nil: the apiserver
	binary string         // of the proxy
}

// road is how clients come.
type road struct {
	http1  bool // instead of HTTP/2
	shared int  // clients of a connection; 0: one
	gzip   bool // clients accept gzip
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

// dial counts what is received.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return counted{conn}, err
}

// client returns a client with a connection of its own. Its HTTP/2 has the windows of client-go.
func (s *server) client(r road) *http.Client {
	config := cluster.Trust(s.ca)
	config.MinVersion = tls.VersionTLS13
	var protocols http.Protocols
	protocols.SetHTTP1(r.http1)
	protocols.SetHTTP2(!r.http1)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, Protocols: &protocols, DisableCompression: true,
		DialContext: dial,
	}}
}

// request is an HTTP request, and how clients take the response.
type request struct {
	paths  []string // with query; they follow in turn
	accept string   // empty: JSON
	method string   // empty: GET
	body   string
	take   func(io.Reader) error // reads the decompressed body; nil: the client only reads
	pages  bool                  // the path and those of the pages that follow it
	// forwarded means that the proxy has no own response.
	forwarded bool
}

// open sends a request and returns when the response's header has arrived.
func (s *server) open(ctx context.Context, c *http.Client, at road, r request, turn int) (*http.Response, error) {
	path := r.paths[turn%len(r.paths)]
	url := s.url
	if strings.Contains(path, "watch=1") {
		url = s.watches
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.method, http.MethodGet), url+path, strings.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
	req.Header.Set("Authorization", "Bearer "+s.token)
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if at.gzip {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	major := 2
	if at.http1 {
		major = 1
	}
	zipped := resp.Header.Get("Content-Encoding") == "gzip"
	if resp.StatusCode/100 != 2 || resp.ProtoMajor != major || zipped && !at.gzip {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s %s: %s, compressed: %t: %q", s.name, resp.Proto, path, resp.Status, zipped, body)
	}
	return resp, nil
}

// ask sends a request and takes the whole response, or a watch to the end of its state.
func (s *server) ask(ctx context.Context, c *http.Client, at road, r request, turn int) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	resp, err := s.open(ctx, c, at, r, turn)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // a watch goes on
	if r.take == nil {
		_, err = io.CopyBuffer(discard{}, resp.Body, make([]byte, 64<<10))
	} else if body, zipErr := plain(resp); zipErr != nil {
		err = zipErr
	} else {
		err = r.take(body)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, r.paths[0], err)
	}
	return nil
}

// discard is io.Discard without its own small buffers.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// plain returns the decompressed body of a response.
func plain(resp *http.Response) (io.Reader, error) {
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return resp.Body, nil
	}
	return gzip.NewReader(resp.Body)
}

// requestLimit limits the time of one request. The apiserver needs seconds for a list, and more
// under load.
const requestLimit = 2 * time.Minute

// once sends one request over its own connection, and returns the response's encoding and body.
func (s *server) once(ctx context.Context, at road, r request) (encoding string, body []byte, err error) {
	c := s.client(at)
	defer c.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	resp, err := s.open(ctx, c, at, r, 0)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // what was read is what counts
	body, err = io.ReadAll(resp.Body)
	return resp.Header.Get("Content-Encoding"), body, err
}
