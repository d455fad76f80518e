package servers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Transport returns a transport to the current server. ways contains the servers' transports, in
// the servers' order. Each transport must accept requests for any server's address.
func (s *Set) Transport(ways []http.RoundTripper) http.RoundTripper {
	if s.alone() {
		return ways[0]
	}
	t := &failover{servers: s, ways: map[*server]http.RoundTripper{}}
	for i, one := range s.servers {
		t.ways[one] = ways[i]
	}
	return t
}

// failover sends requests to the current server. If it gets no connection to that server, it tries
// another usable server.
type failover struct {
	servers *Set
	ways    map[*server]http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *failover) RoundTrip(req *http.Request) (*http.Response, error) {
	one := t.servers.servers[t.servers.current.Load()]
	for attempts := 1; ; attempts++ {
		if one.foreign.Load() {
			return nil, errForeign // no server of this cluster is left
		}
		resp, sent, err := t.send(one, req)
		if err == nil || req.Context().Err() != nil {
			return resp, err
		}
		if sent {
			t.servers.suspect(one)
			return nil, err
		}
		instead, ok := t.servers.failed(one, err)
		if !ok || attempts == len(t.servers.servers) {
			return nil, err
		}
		if req.Body != nil && req.Body != http.NoBody { // the first transport has closed the body
			if req.GetBody == nil {
				return nil, err
			}
			again := *req
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
			req = &again
		}
		one = instead
	}
}

// send sends a request to one server. If the set gives up the server, the request ends. sent is
// false if the request got no connection, for example because a TLS handshake failed.
func (t *failover) send(one *server, req *http.Request) (resp *http.Response, sent bool, err error) {
	life := one.life.Load()
	var waits atomic.Bool // for a connection
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { waits.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { waits.Store(false) },
	}))
	stop := context.AfterFunc(life, cancel)
	done := func() {
		stop()
		cancel()
	}
	out := req.WithContext(ctx)
	address := *req.URL
	address.Scheme, address.Host = one.Base.Scheme, one.Base.Host
	out.URL, out.Host = &address, ""
	resp, err = t.ways[one].RoundTrip(out)
	if err != nil {
		done()
		if life.Err() != nil && req.Context().Err() == nil {
			err = errDead
		}
		return nil, !waits.Load(), err
	}
	body := &bounded{ReadCloser: resp.Body, life: life, done: done}
	resp.Body = body
	if w, ok := body.ReadCloser.(duplex); ok { // an upgraded connection does not end with the context
		unhook := context.AfterFunc(life, func() { _ = w.Close() })
		body.done = func() {
			unhook()
			done()
		}
		resp.Body = struct {
			*bounded
			io.Writer
			halfCloser
		}{body, w, w}
	}
	return resp, true, nil
}

// duplex is the body that net/http returns for an upgraded connection.
type duplex interface {
	io.ReadWriteCloser
	halfCloser
}

type halfCloser interface{ CloseWrite() error }

// bounded is a response body that ends when the set gives up the server.
type bounded struct {
	io.ReadCloser
	life   *life
	done   func()
	closed atomic.Bool
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && b.life.Err() != nil && !b.closed.Load() {
		err = errDead
	}
	return n, err
}

// Close implements io.Closer.
func (b *bounded) Close() error {
	b.closed.Store(true)
	defer b.done()
	return b.ReadCloser.Close()
}
