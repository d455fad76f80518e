package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/conntest"
)

// failingUpstream is an apiserver that fails once, at the first request that is no read of /version.
// It executes and answers all later requests.
type failingUpstream struct {
	*conntest.Listener
	failure  failure
	failed   atomic.Bool
	closed   atomic.Bool // see again
	executed atomic.Int64
}

// failure is what an upstream does at the first request. The functions return false if the
// connection ends. Without a function for its protocol, the request does not fail.
type failure struct {
	dial     error // of the first connection
	accept   bool  // the connection is closed before its handshake
	executes bool  // the request is executed
	http1    func(c *upstreamConn) bool
	http2    func(c *upstreamConn, stream uint32) bool
	used     bool // the connection has had a request before
	again    bool // also the next connection is closed before its handshake
	unsent   bool // the proxy knows that the request was not executed
}

// upstreamConn is a connection to a failingUpstream.
type upstreamConn struct {
	net.Conn
	frames *http2.Framer // nil over HTTP/1.1
}

const (
	created = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`
	refusal = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":503}`
)

// answer sends a whole response, or its beginning.
func (c *upstreamConn) answer(stream uint32, code int, body string, cut int, header ...string) bool {
	if c.frames == nil {
		head := fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", code, len(body))
		for i := 0; i < len(header); i += 2 {
			head += header[i] + ": " + header[i+1] + "\r\n"
		}
		_, err := io.WriteString(c, head+"\r\n"+body[:len(body)-cut])
		return err == nil
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: fmt.Sprint(code)})
	_ = e.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/json"})
	for i := 0; i < len(header); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: strings.ToLower(header[i]), Value: header[i+1]})
	}
	_ = c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	return c.frames.WriteData(stream, cut == 0, []byte(body[:len(body)-cut])) == nil
}

func dies(*upstreamConn) bool              { return false }
func diesOver2(*upstreamConn, uint32) bool { return false }

func silentOver1(*upstreamConn) bool         { return true }
func silentOver2(*upstreamConn, uint32) bool { return true }

// diesAfter sends bytes and closes the connection.
func diesAfter(text string) func(*upstreamConn) bool {
	return func(c *upstreamConn) bool {
		_, _ = io.WriteString(c, text)
		return false
	}
}

var failuresOfUpstream = map[string]failure{
	"no failure":                        {executes: true},
	"refuses the connection":            {dial: net.ErrClosed, unsent: true},
	"does not answer the dial":          {dial: os.ErrDeadlineExceeded, unsent: true},
	"closes before the handshake":       {accept: true, unsent: true},
	"dies before it executes":           {http1: dies, http2: diesOver2},
	"dies after it has executed":        {executes: true, http1: dies, http2: diesOver2},
	"dies, used connection":             {executes: true, used: true, http1: dies, http2: diesOver2},
	"dies before, used connection":      {used: true, http1: dies, http2: diesOver2},
	"is silent before it executes":      {http1: silentOver1, http2: silentOver2},
	"is silent after it has executed":   {executes: true, http1: silentOver1, http2: silentOver2},
	"dies within the head of an answer": {executes: true, http1: diesAfter("HTTP/1.1 201 Cre"), http2: diesOver2},
	"dies within the body of an answer": {
		executes: true,
		http1:    func(c *upstreamConn) bool { c.answer(0, http.StatusCreated, created, 9); return false },
		http2: func(c *upstreamConn, stream uint32) bool {
			c.answer(stream, http.StatusCreated, created, 9)
			return false
		},
	},
	"resets the stream": {executes: true, http1: dies, http2: func(c *upstreamConn, stream uint32) bool {
		return c.frames.WriteRSTStream(stream, http2.ErrCodeInternal) == nil
	}},
	"refuses the stream": {http2: func(c *upstreamConn, stream uint32) bool {
		return c.frames.WriteRSTStream(stream, http2.ErrCodeRefusedStream) == nil
	}},
	"GOAWAY before the request": {http2: func(c *upstreamConn, _ uint32) bool {
		_ = c.frames.WriteGoAway(0, http2.ErrCodeNo, nil)
		return false
	}},
	"GOAWAY, then closes before the handshake": {again: true, unsent: true, http2: func(c *upstreamConn, _ uint32) bool {
		_ = c.frames.WriteGoAway(0, http2.ErrCodeNo, nil)
		return false
	}},
	"GOAWAY, an answer, the end": {
		executes: true,
		http1: func(c *upstreamConn) bool {
			c.answer(0, http.StatusCreated, created, 0, "Connection", "close")
			return false
		},
		http2: func(c *upstreamConn, stream uint32) bool {
			_ = c.frames.WriteGoAway(stream, http2.ErrCodeNo, nil)
			c.answer(stream, http.StatusCreated, created, 0)
			return false
		},
	},
	"GOAWAY, the end": {executes: true, http1: dies, http2: func(c *upstreamConn, stream uint32) bool {
		_ = c.frames.WriteGoAway(stream, http2.ErrCodeNo, nil)
		return false
	}},
	"503 with Retry-After": {
		http1: func(c *upstreamConn) bool {
			return c.answer(0, http.StatusServiceUnavailable, refusal, 0, "Retry-After", "1")
		},
		http2: func(c *upstreamConn, stream uint32) bool {
			return c.answer(stream, http.StatusServiceUnavailable, refusal, 0, "Retry-After", "1")
		},
	},
	"503 without Retry-After": {
		executes: true,
		http1:    func(c *upstreamConn) bool { return c.answer(0, http.StatusServiceUnavailable, refusal, 0) },
		http2: func(c *upstreamConn, stream uint32) bool {
			return c.answer(stream, http.StatusServiceUnavailable, refusal, 0)
		},
	},
}

// startUpstream runs an upstream until the end of the test. It returns its clients' configuration.
func startUpstream(t *testing.T, f failure, protocol string) (*failingUpstream, *rest.Config) {
	t.Helper()
	u := &failingUpstream{Listener: conntest.Listen(1 << 20), failure: f}
	u.failed.Store(f.dial != nil)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running.Go(func() {
		for {
			c, err := u.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				u.serve(t, c)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		u.Close()
		running.Wait()
	})
	var dialed atomic.Bool
	return u, clientConfig(protocol, func(context.Context, string, string) (net.Conn, error) {
		if f.dial != nil && dialed.CompareAndSwap(false, true) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: f.dial}
		}
		return u.Dial()
	})
}

// clientConfig returns the configuration of a client over TLS.
func clientConfig(protocol string, dial func(context.Context, string, string) (net.Conn, error)) *rest.Config {
	protocols := []string{protocol}
	if protocol == "h2" {
		protocols = append(protocols, "http/1.1")
	}
	return &rest.Config{
		Host: "https://localhost", Dial: dial, QPS: -1, Timeout: 20 * time.Second, BearerToken: "a",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true, NextProtos: protocols},
		ContentConfig:   rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
	}
}

func (u *failingUpstream) serve(t *testing.T, raw net.Conn) {
	t.Helper()
	if u.failure.accept && u.failed.CompareAndSwap(false, true) || u.failure.again && u.failed.Load() && u.closed.CompareAndSwap(false, true) {
		return
	}
	secure := tls.Server(raw, selfSigned())
	if err := secure.HandshakeContext(t.Context()); err != nil {
		return
	}
	c := &upstreamConn{Conn: secure}
	if secure.ConnectionState().NegotiatedProtocol == http2.NextProtoTLS {
		u.serve2(c)
		return
	}
	reader := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err = io.Copy(io.Discard, req.Body); err != nil || !u.respond(c, 0, req.URL.Path) {
			return
		}
	}
}

// serve2 serves HTTP/2 with windows above any request.
func (u *failingUpstream) serve2(c *upstreamConn) {
	const window = 1 << 20
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	c.frames = http2.NewFramer(c, c)
	c.frames.ReadMetaHeaders = hpack.NewDecoder(1<<12, nil)
	_ = c.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	_ = c.frames.WriteWindowUpdate(0, window)
	paths := map[uint32]string{}
	for {
		frame, err := c.frames.ReadFrame()
		if err != nil {
			return
		}
		ended := false
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.frames.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.frames.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			paths[f.StreamID] = f.PseudoValue("path")
			ended = f.StreamEnded()
		case *http2.DataFrame:
			ended = f.StreamEnded()
		}
		stream := frame.Header().StreamID
		if ended && !u.respond(c, stream, paths[stream]) {
			return
		}
	}
}

// respond executes a request and answers, or fails.
func (u *failingUpstream) respond(c *upstreamConn, stream uint32, path string) bool {
	if strings.HasPrefix(path, "/version") {
		return c.answer(stream, http.StatusOK, "{}", 0)
	}
	f := u.failure
	fails := !f.accept && (c.frames == nil && f.http1 != nil || c.frames != nil && f.http2 != nil) && u.failed.CompareAndSwap(false, true)
	if !fails || f.executes {
		u.executed.Add(1)
	}
	switch {
	case fails && c.frames == nil:
		return f.http1(c)
	case fails:
		return f.http2(c, stream)
	}
	return c.answer(stream, http.StatusCreated, created, 0)
}

// result is what a client sees of a request, and how often the request was executed.
type result struct {
	executed int64
	err      error
}

// request sends one request of client-go, which sends some requests again by itself.
func (u *failingUpstream) request(t *testing.T, config *rest.Config, verb string, body []byte) (r result) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	rested, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	if err != nil {
		t.Fatal(err)
	}
	if u.failure.used {
		if err := rested.Get().AbsPath("/version").Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	path := "/api/v1/namespaces/a/configmaps"
	if verb != http.MethodPost {
		path += "/a"
	}
	request := rested.Verb(verb).AbsPath(path)
	if body != nil {
		request.Body(body).SetHeader("Content-Type", "application/json")
	}
	r.err = request.Do(t.Context()).Error()
	r.executed = u.executed.Load()
	return r
}

// Through the proxy, a write is executed as often as directly, and the client learns of a failure
// as it would directly. A read may succeed where it fails directly.
func TestFailuresOfUpstream(t *testing.T) {
	long := append([]byte(created), bytes.Repeat([]byte(" "), 100<<10)...)
	requests := map[string]struct {
		verb string
		body []byte
	}{
		"get": {http.MethodGet, nil}, "delete": {http.MethodDelete, nil}, "delete with options": {http.MethodDelete, []byte("{}")},
		"create": {http.MethodPost, []byte(created)}, "long create": {http.MethodPost, long},
		"update": {http.MethodPut, []byte(created)}, "patch": {http.MethodPatch, []byte("{}")},
	}
	for name, f := range failuresOfUpstream {
		for _, protocol := range []string{"http/1.1", "h2"} {
			for verb, request := range requests {
				t.Run(strings.Join([]string{name, protocol, verb}, "/"), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						u, config := startUpstream(t, f, protocol)
						direct := u.request(t, rest.AnonymousClientConfig(config), request.verb, request.body)

						u, config = startUpstream(t, f, protocol)
						l := conntest.Listen(1 << 20)
						s := serveBefore(t, l, forwardsAll{}, config, testOptions(), prometheus.NewRegistry(), zap.NewNop())
						client := rest.AnonymousClientConfig(clientConfig(protocol, func(context.Context, string, string) (net.Conn, error) { return l.Dial() }))
						proxied := u.request(t, client, request.verb, request.body)
						synctest.Wait()
						if n := usersHold(s) + s.limits.queues.forwards.Taken(); n != 0 {
							t.Errorf("after the request, %d bytes and slots are held", n)
						}

						same := proxied.executed == direct.executed && (proxied.err == nil) == (direct.err == nil)
						switch {
						case request.verb == http.MethodGet:
							same = proxied.err == nil || direct.err != nil
						case direct.executed == 0 && proxied.executed == 1:
							same = direct.err != nil && proxied.err == nil // it was safe to send it again
						}
						if f.unsent {
							same = proxied.err == nil && proxied.executed == 1 // client-go repeats it after a 503 with Retry-After
						}
						if !same {
							t.Errorf("executed %d times, error %v; directly %d times, error %v", proxied.executed, proxied.err, direct.executed, direct.err)
						}
						if direct.executed > 1 && request.verb != http.MethodGet {
							t.Errorf("the test's own client executed it %d times directly", direct.executed)
						}
					})
				})
			}
		}
	}
}
