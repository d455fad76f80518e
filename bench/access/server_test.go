package access

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// server is the apiserver or a proxy, as callers reach it. Callers with tokens share connections,
// as they do behind a load balancer. Callers with certificates have connections of their own. A
// caller that gets 401 uses a new connection for each request: over HTTP/2, the 401 closes the
// connection for all of its requests. Go's client would then send the other requests again. If that
// connection were closed, too, it would wait, for up to a minute in all.
type server struct {
	name string
	url  string
	tls  *tls.Config

	mu struct {
		sync.Mutex
		clients map[client]*cluster.Endpoint
	}
}

// client identifies a client of a server.
type client struct {
	cert *tls.Certificate
	once bool // each connection carries a single request
}

func newServer(tb testing.TB, name, url string, ca []byte) *server {
	tb.Helper()
	s := &server{name: name, url: url, tls: cluster.Trust(ca)}
	s.mu.clients = map[client]*cluster.Endpoint{}
	tb.Cleanup(func() {
		for _, e := range s.mu.clients {
			e.CloseIdle()
		}
	})
	return s
}

// endpoint returns the server as a caller reaches it. The caller presents its certificate even if
// the server does not name the certificate's CA as acceptable.
func (s *server) endpoint(c *caller) *cluster.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := client{c.cert, slices.Contains(c.answers, unknown)}
	if s.mu.clients[id] == nil {
		config := s.tls.Clone()
		if c.cert != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.cert, nil }
		}
		e := cluster.NewEndpoint(s.name, s.url, "", config)
		if id.once {
			e.Once()
		}
		s.mu.clients[id] = e
	}
	return s.mu.clients[id]
}

// request is a request of a caller.
type request struct {
	method   string // empty: GET
	target   string // path and query, sent unchanged
	accept   string // empty: JSON
	header   http.Header
	body     string           // in JSON
	protocol cluster.Protocol // random by default
	watches  bool             // a watch; it is read until it ends or its initial state is complete
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
	events []conformance.Event // the events of a watch, instead of the body
}

// send sends a request and returns as soon as the answer's header arrives.
func (s *server) send(ctx context.Context, c *caller, r request) (*http.Response, error) {
	resp, err := s.endpoint(c).Open(ctx, cluster.Request{Method: r.method, Target: r.target, Header: s.header(c, r), Body: r.body, Protocol: r.protocol})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return resp, nil
}

// userAgent is the User-Agent of callers.
const userAgent = "access/1"

// header returns the header of a caller's request.
func (s *server) header(c *caller, r request) http.Header {
	h := http.Header{"User-Agent": {userAgent}, "Accept": {"application/json"}}
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

// limit limits the time of a request.
const limit = time.Minute

// ask sends a request and reads the whole answer. If the request is a watch, ask reads until the
// watch ends or its initial state is complete.
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
		for e, broken := range conformance.Events(resp) {
			if err = broken; err != nil {
				break
			}
			if a.events = append(a.events, e); e.InitialEnd {
				break
			}
		}
	} else {
		a.body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return a, fmt.Errorf("%s: %s: %s %s: read answer: %w", s.name, c.name, r.method, r.target, err)
	}
	return a, nil
}

// must is ask for requests that must succeed.
func (s *server) must(tb testing.TB, c *caller, r request) answer {
	tb.Helper()
	a, err := s.ask(tb.Context(), c, r)
	cluster.MustT(tb, err)
	return a
}
