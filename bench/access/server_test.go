package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/conformance"
)

// server is the apiserver or a proxy, as callers reach it. Callers with tokens share connections, as they do behind a
// load balancer; those with a certificate have their own. Who is refused with a 401 takes a connection for each request
// over HTTP/2: the 401 ends the connection for all, and Go's client, if what it sends once more meets another such end,
// waits for up to a minute in all before it sends it again.
type server struct {
	name string
	url  string
	tls  *tls.Config

	mu struct {
		sync.Mutex
		clients map[client]*http.Client
	}
}

// client tells clients of a server apart.
type client struct {
	cert  *tls.Certificate
	http2 bool
	once  bool // a connection carries a single request
}

func newServer(name, url string, ca []byte) *server {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	s := &server{name: name, url: url, tls: &tls.Config{RootCAs: roots}}
	s.mu.clients = map[client]*http.Client{}
	return s
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.mu.clients {
		c.CloseIdleConnections()
	}
}

func (s *server) client(c *caller, http2 bool) *http.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := client{c.cert, http2, http2 && slices.Contains(c.answers, unknown)}
	if s.mu.clients[id] == nil {
		var protocols http.Protocols
		protocols.SetHTTP1(!http2)
		protocols.SetHTTP2(http2)
		s.mu.clients[id] = &http.Client{Transport: &http.Transport{
			DisableCompression:  true,
			DisableKeepAlives:   id.once,
			TLSClientConfig:     s.tlsConfig(c.cert),
			Protocols:           &protocols,
			MaxIdleConnsPerHost: watchers,
		}}
	}
	return s.mu.clients[id]
}

// tlsConfig presents a certificate, if there is one, even if the server names no authority that has signed it.
func (s *server) tlsConfig(cert *tls.Certificate) *tls.Config {
	config := s.tls.Clone()
	if cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return config
}

// request is what a caller asks for.
type request struct {
	method  string // empty: GET
	target  string // path and query, sent as it stands
	accept  string // empty: JSON
	header  http.Header
	body    string // in JSON
	http2   bool
	watches bool // until it ends, or its initial state has
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	events []conformance.Event // of a watch, instead of the body
}

// send sends a request and returns when the answer's header is there.
func (s *server) send(ctx context.Context, c *caller, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, s.url, strings.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.body == "" {
		req.Body, req.ContentLength = nil, 0
	}
	req.URL.Opaque, req.URL.RawQuery, _ = strings.Cut(r.target, "?")
	maps.Copy(req.Header, s.header(c, r))
	resp, err := s.client(c, r.http2).Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %s %s: %w", s.name, c.name, r.method, r.target, err)
	}
	return resp, nil
}

// header is that of a caller's request.
func (s *server) header(c *caller, r request) http.Header {
	h := http.Header{"User-Agent": {"access/1"}, "Accept": {"application/json"}}
	if r.accept != "" {
		h.Set("Accept", r.accept)
	}
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	if r.body != "" {
		h.Set("Content-Type", "application/json")
	}
	maps.Copy(h, c.header)
	maps.Copy(h, r.header)
	return h
}

// ask sends a request and reads the whole answer; of a watch, until it ends or its initial state has come.
func (s *server) ask(ctx context.Context, c *caller, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := s.send(ctx, c, r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if r.watches && resp.StatusCode == http.StatusOK {
		a.events, err = readEvents(resp, func(e conformance.Event) bool { return e.InitialEnd })
	} else {
		a.body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return a, fmt.Errorf("%s: %s: %s %s: read answer: %w", s.name, c.name, r.method, r.target, err)
	}
	return a, nil
}

// must is ask for what a test needs.
func (s *server) must(tb testing.TB, c *caller, r request) answer {
	tb.Helper()
	a, err := s.ask(tb.Context(), c, r)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// readEvents reads a watch up to its last event, or to its end.
func readEvents(resp *http.Response, last func(conformance.Event) bool) (events []conformance.Event, err error) {
	body := bufio.NewReader(resp.Body)
	next := nextLine
	if strings.HasPrefix(resp.Header.Get("Content-Type"), protobuf) {
		next = nextFrame
	}
	for {
		e, err := next(body)
		switch {
		case err == io.EOF: //nolint:errorlint // a clean end is not wrapped
			return events, nil
		case err != nil:
			return events, err
		}
		if events = append(events, e); last(e) {
			return events, nil
		}
	}
}

func nextLine(body *bufio.Reader) (conformance.Event, error) {
	line, err := body.ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return conformance.Event{}, err
	case err != nil:
		return conformance.Event{}, fmt.Errorf("watch broke after %q: %w", line, err)
	}
	return conformance.ParseEvent(line)
}

func nextFrame(body *bufio.Reader) (conformance.Event, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(body, frame); err != nil {
		return conformance.Event{}, err
	}
	frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
	if _, err := io.ReadFull(body, frame[4:]); err != nil {
		return conformance.Event{}, fmt.Errorf("cut frame: %w", err)
	}
	return conformance.ParseProtoEvent(frame)
}

// stream is an open watch.
type stream struct {
	ended  <-chan struct{} // closed when the watch has ended
	cancel context.CancelFunc
}

// watch opens a watch that ends with the test.
func (s *server) watch(t *testing.T, c *caller, target string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := s.send(ctx, c, request{target: target})
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		t.Fatalf("%s: %s: watch %s: %s", s.name, c.name, target, resp.Status)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return &stream{ended: ended, cancel: cancel}
}

// endsWithin tells whether a watch ends by itself in time.
func (s *stream) endsWithin(bound time.Duration) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-s.ended:
		return true
	case <-timer.C:
		return false
	}
}
