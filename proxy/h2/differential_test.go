package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// session is a connection with its settings, and the shapes that it carries at the same time.
type session struct {
	window, frame, widens int
	shapes                []*shape
}

func newSession(random *rand.Rand) *session {
	s := &session{window: cachetest.AnySize(random, 4<<20), frame: 16 << 10}
	if random.IntN(2) == 0 {
		s.frame += random.IntN(1 << 20)
	}
	n := pick(random, 1, 1, 2, 4, 8)
	for i := range n {
		s.shapes = append(s.shapes, newShape(random, i, n == 1))
	}
	s.widens = cachetest.AnySize(random, 1<<20) + 8<<10
	return s
}

// run runs a session with this server, or with net/http's.
func (s *session) run(t *testing.T, ours bool) (all []seen, said []*heard) {
	t.Helper()
	for _, shape := range s.shapes {
		shape.started, shape.read = make(chan struct{}), make(chan struct{})
	}
	said = make([]*heard, len(s.shapes))
	l := conntest.Listen(unread)
	end := s.serve(l, said, ours)
	nc, err := l.Dial()
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(patience))
	all = make([]seen, len(s.shapes))
	ask, done := s.frames(nc)
	var asking sync.WaitGroup
	for i, shape := range s.shapes {
		asking.Go(func() { all[i] = ask(shape) })
	}
	asking.Wait()
	done()
	end()
	return all, said
}

// serve serves a connection of a listener until it ends. It records what handlers have heard.
func (s *session) serve(l *conntest.Listener, said []*heard, ours bool) (end func()) {
	answers := func(ctx context.Context, req *exchange.Request) *exchange.Response {
		i, err := strconv.Atoi(req.Header.Get("X-Shape"))
		if err != nil {
			return says("no shape")
		}
		said[i] = &heard{method: req.Method, target: req.Target, host: req.Host, header: req.Header}
		s.shapes[i].hear(ctx, said[i], req.Body)
		return s.shapes[i].respond(ctx, said[i])
	}
	var running sync.WaitGroup
	if ours {
		running.Go(func() {
			accepted, _ := l.Accept()
			newServer(answers, limits()).Serve(known(accepted))
		})
		return running.Wait
	}
	theirs := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0), DisableGeneralOptionsHandler: true, Protocols: &http.Protocols{},
		MaxHeaderBytes: limits().HeaderBytes - 10*32,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			respond(w, r, answers)
		}),
	}
	theirs.Protocols.SetUnencryptedHTTP2(true)
	running.Go(func() { _ = theirs.Serve(l) })
	return func() {
		theirs.Close()
		running.Wait()
	}
}

// respond answers through net/http.
func respond(w http.ResponseWriter, r *http.Request, answers handler) {
	req := &exchange.Request{Method: r.Method, Target: r.RequestURI, Host: r.Host, Header: r.Header}
	req.Body = &exchange.Body{From: r.Body, Length: r.ContentLength}
	resp := answers(r.Context(), req)
	maps.Copy(w.Header(), resp.Header)
	none := resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified
	length := int64(-1)
	switch body := resp.Body.(type) {
	case *fair.List:
		length = body.Length
	case *exchange.Reader:
		length = body.Length
	case exchange.Bytes:
		length = int64(len(body))
	}
	if length >= 0 && !none {
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	}
	if w.WriteHeader(resp.Status); none || r.Method == http.MethodHead {
		return
	}
	to := flushing{w}
	_, err := to.Write(resp.Bytes())
	switch body := resp.Body.(type) {
	case exchange.Stream:
		body.Run(r.Context(), &exchange.ChunkWriter{To: to, Unchunked: true})
	case *fair.List:
		_, err = body.Write(to, false)
	case *exchange.Reader:
		_, err = resp.Copy(r.Context(), to, req, nil)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// flushing writes without delay.
type flushing struct{ http.ResponseWriter }

// Write implements io.Writer.
func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// frames sends requests as single frames.
func (s *session) frames(nc net.Conn) (ask func(*shape) seen, done func()) {
	var c *client
	ready := make(chan struct{})
	c = newClient(nc, func(f http2.Frame) {
		<-ready
		if f.Header().Type == http2.FrameData && f.Header().Length > 0 {
			c.do(func() { s.widenLocked(c, f.Header()) })
		}
	}).greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(s.window)}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(s.frame)})
	close(ready)
	return func(shape *shape) (got seen) {
		var call *call
		c.do(func() { call = c.beginLocked(!shape.hasBody, shape.piece, shape.pad, shape.fieldsOf()...) })
		err := shape.upload(c, call)
		if shape.cancels && err == nil {
			<-shape.read
			err = c.await(func() bool {
				return call.over() || shape.kind == inBytes || call.headed && len(call.body) == len(shape.answer)
			})
			c.do(func() { c.cancelLocked(call) })
			err = errors.Join(err, c.await(func() bool { return call.confirmed }))
		}
		if err == nil {
			err = c.await(call.over)
		}
		if err == nil && shape.holds && !call.canceled {
			err = c.await(func() bool { return call.reset != nil })
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return call.seen(err)
	}, c.close
}

// widenLocked returns the size of a frame to the connection's window, and gives a stream its next
// window.
func (s *session) widenLocked(c *client, h http2.FrameHeader) {
	c.widenLocked(nil, int64(h.Length))
	if call := c.mu.calls[h.StreamID]; !call.over() && int64(s.window)+call.given-call.got < int64(s.widens) {
		c.widenLocked(call, int64(s.widens))
	}
}

func (s *call) seen(err error) seen {
	got := seen{informed: strings.Join(s.informed, " "), header: http.Header{}, end: fmt.Sprint(err)}
	for _, f := range s.header {
		if f.Name == ":status" {
			got.status = f.Value
		} else {
			got.header.Add(f.Name, f.Value)
		}
	}
	if s.headed {
		got.body = digest(s.body)
	}
	if s.reset != nil {
		got.end = s.reset.String()
	}
	return got
}

// upload sends the body of a request as far as the server wants it.
func (s *shape) upload(c *client, call *call) error {
	if !s.hasBody {
		return nil
	}
	if s.expects() {
		if err := c.await(func() bool { return call.over() || len(call.informed) > 0 }); err != nil {
			return err
		}
	}
	if s.declared >= 0 && s.declared != len(s.body) {
		<-s.started
	}
	for p, ended := s.body, false; !ended; {
		err := c.await(func() bool {
			if call.over() {
				ended = true
				return true
			}
			n := c.dataLocked(call, p[:min(len(p), s.piece)], len(p) <= s.piece && len(s.trailers) == 0 && !s.holds, s.pad)
			if p = p[n:]; n > 0 || call.uploaded {
				c.mu.changed.Broadcast()
			}
			ended = call.uploaded || len(p) == 0
			return n > 0 || ended
		})
		if err != nil {
			return err
		}
	}
	c.do(func() {
		if !call.over() && !s.holds && !call.uploaded {
			call.uploaded = true
			c.headersLocked(call.id, true, s.piece, 0, s.trailers...)
		}
	})
	return nil
}

// TestLikeNetHTTP compares this server with net/http's: the results at clients and handlers.
func TestLikeNetHTTP(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	shapes := cachetest.Rounds(250, 1000)
	for done := 0; done < shapes; {
		s := newSession(random)
		got, heard := s.run(t, true)
		want, wantHeard := s.run(t, false)
		for i, shape := range s.shapes {
			shape.except(&got[i], heard[i])
			shape.except(&want[i], wantHeard[i])
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Errorf("%s\nthe client sees %s\ninstead of      %s", short(*shape), short(got[i]), short(want[i]))
			}
			if !reflect.DeepEqual(heard[i], wantHeard[i]) {
				t.Errorf("%s\nthe handler sees %s\ninstead of       %s", short(*shape), short(heard[i]), short(wantHeard[i]))
			}
		}
		if done += len(s.shapes); t.Failed() {
			return
		}
	}
}

// short returns the beginning of a value, which may have megabytes.
func short(v any) string { return fmt.Sprintf("%.2000s", fmt.Sprint(v)) }

// except removes parts that may differ.
func (s *shape) except(got *seen, h *heard) {
	if strings.Contains(got.end, "EOF") || strings.Contains(got.end, "reset by peer") {
		got.end = "the connection ended"
	}
	if got.status == "431" { // each server has its own text
		got.header, got.body = nil, ""
	}
	got.header.Del("Date")
	if len(s.fields["Content-Type"]) == 0 {
		got.header.Del("Content-Type") // net/http guesses it
	}
	if got.status == "400" && len(got.header["X-Content-Type-Options"]) > 0 {
		// Net/http answers fields of one connection with a 400.
		*got = seen{header: http.Header{}, end: http2.ErrCodeProtocol.String()}
	}
	if !s.holds && got.end == http2.ErrCodeNo.String() {
		got.end = "<nil>" // the end of the upload and the response may cross
	}
	if h != nil {
		if h.unread {
			h.body = "" // its length depends on the bytes before the failure
		}
		h.header.Del("Host")    // the field is in h.host; net/http leaves a second copy
		h.header.Del("Expect")  // net/http drops it after handling it
		h.header.Del("Trailer") // net/http drops it too; this server drops the trailers themselves
	}
}
