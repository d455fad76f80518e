package h2

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// server is one of the two servers for the requests of a session.
type server struct {
	shapes  []*shape
	heard   []*heard
	running sync.WaitGroup
	dial    func() (net.Conn, error)
	close   func()
}

func (s *server) begin(h http.Header, heard *heard) (*shape, bool) {
	i, err := strconv.Atoi(h.Get("X-Shape"))
	if err != nil {
		return nil, false
	}
	heard.header = h
	s.heard[i] = heard
	return s.shapes[i], true
}

func (s *server) listen(serve func(l net.Listener)) net.Listener {
	l := conntest.Listen(unread)
	s.dial = l.Dial
	s.running.Go(func() { serve(l) })
	return l
}

// ours returns the server of this package.
func ours() *server {
	s := &server{}
	h2 := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
		h := &heard{method: req.Method, target: req.Target, host: req.Host}
		shape, ok := s.begin(req.Header, h)
		if !ok {
			return says("no shape")
		}
		var body io.Reader = http.NoBody
		if req.Body != nil {
			body = req.Body
		}
		shape.hear(ctx, h, body)
		return shape.respond(ctx, h)
	}, options())
	l := s.listen(func(l net.Listener) {
		for {
			accepted, err := l.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { h2.Serve(known(accepted)) })
		}
	})
	s.close = func() { l.Close(); s.running.Wait() }
	return s
}

// theirs returns net/http's server.
func theirs() *server {
	s := &server{}
	var handlers sync.WaitGroup
	h1 := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0), DisableGeneralOptionsHandler: true, Protocols: &http.Protocols{}, MaxHeaderBytes: options().Limits.HeaderBytes - 10*32,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.Add(1)
			defer handlers.Done()
			h := &heard{method: r.Method, target: r.RequestURI, host: r.Host}
			if shape, ok := s.begin(r.Header, h); ok {
				shape.hear(r.Context(), h, r.Body)
				shape.serve(w, r, h)
			}
		}),
	}
	h1.Protocols.SetUnencryptedHTTP2(true)
	s.listen(func(l net.Listener) { h1.Serve(l) })
	s.close = func() { h1.Close(); s.running.Wait(); handlers.Wait() }
	return s
}
