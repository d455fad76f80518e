package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// secondStream is a stream that lasts a second, unless its client leaves.
type secondStream struct{ panics bool }

// Run implements exchange.Stream.
func (s secondStream) Run(ctx context.Context, out *exchange.ChunkWriter) {
	b := out.Pending()
	*b = append(*b, "event"...)
	if out.Flush() != nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	if s.panics {
		panic("a test")
	}
}

// Abandon implements exchange.Stream.
func (secondStream) Abandon() {}

// Reason implements exchange.Stream.
func (secondStream) Reason() string { return "over" }

// Over HTTP/1.1, further requests follow a watch, as at the apiserver. They may also arrive while the
// watch is open.
func TestRequestsAfterAStream(t *testing.T) {
	const watch, other = "GET /watch HTTP/1.1\r\nHost: a\r\n\r\n", "GET /other HTTP/1.1\r\nHost: a\r\n\r\n"
	withBody := func(request, body string) string {
		return strings.Replace(request, "Host", fmt.Sprintf("Content-Length: %d\r\nHost", len(body)), 1) + body
	}
	const post = "POST /other HTTP/1.1\r\nHost: a\r\n\r\n"
	long := "GET /other HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 2*exchange.AheadMax) + "\r\n\r\n"
	config := tlsConfig(t)
	for name, test := range map[string]struct {
		first, during, after string
		panics, drains       bool
		drained              bool // the watch begins in a drain
		preceded             bool // the first request is no watch
		says, ends           bool // the watch's answer says that the connection ends; it ends
	}{
		"after":                 {first: watch, after: other},
		"a watch after a watch": {first: watch, after: watch},
		"during":                {first: watch, during: other},
		"half of it during":     {first: watch, during: other[:20], after: other[20:]},
		"at once":               {first: watch + other, says: true, ends: true},
		"at once, with a body":  {first: withBody(watch, other), says: true, ends: true},
		"at once, after a body": {first: withBody(post, "x") + watch + other, preceded: true, says: true, ends: true},
		"after a body":          {first: withBody(post, "x") + watch, after: other, preceded: true},
		"too long":              {first: watch, during: long, ends: true},
		"HTTP/1.0":              {first: strings.Replace(watch, "1.1", "1.0", 1), says: true, ends: true},
		"Connection: close":     {first: strings.Replace(watch, "Host", "Connection: close\r\nHost", 1), says: true, ends: true},
		"after a panic":         {first: watch, panics: true, ends: true},
		"during a panic":        {first: watch, during: long[:10<<10], panics: true, ends: true},
		"on the way to a drain": {first: watch, drains: true, after: other},
		"in a drain":            {first: watch, drained: true, says: true, ends: true},
		"idle in a drain":       {first: watch, drains: true, ends: true},
	} {
		for _, config := range []*tls.Config{nil, config} {
			t.Run(name+map[bool]string{true: " over TLS"}[config != nil], func(t *testing.T) {
				talk(t, func(req *exchange.Request) *exchange.Response {
					resp := exchange.NewResponse(http.StatusOK, exchange.FromProxy)
					resp.Body = exchange.Bytes(req.Path)
					if req.Path == "/watch" {
						resp.Body = secondStream{test.panics}
					} else if req.Body != nil {
						_, _ = io.ReadAll(req.Body)
					}
					return resp
				}, config, 1<<20, func(p *peer) {
					answers := func(want string) (says bool) {
						t.Helper()
						resp, body, err := p.reads()
						if body != want || (err != nil) != test.panics {
							t.Fatalf("the answer is %q, %v; want %q", body, err, want)
						}
						return resp.Close
					}
					if test.drained {
						p.drain()
						synctest.Wait()
					}
					p.sends(test.first)
					if test.preceded {
						answers("/other")
					}
					if test.during != "" {
						p.sends(test.during)
					}
					if test.drains {
						time.Sleep(time.Second - 1)
						p.drain()
					}
					if says := answers("event"); says != test.says {
						t.Errorf("the watch's answer ends the connection: %t", says)
					}
					if test.ends {
						began := time.Now()
						if _, err := p.from.ReadByte(); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) || time.Since(began) > roundTripMax {
							t.Errorf("the connection ends after %v: %v", time.Since(began), err)
						}
						return
					}
					if test.after != "" {
						p.sends(test.after)
					}
					want := "/other"
					if test.after == watch {
						want = "event"
					}
					answers(want)
				})
			})
		}
	}
}

// Requests may follow each other at once, also long ones.
func TestPipelinedRequests(t *testing.T) {
	talk(t, func(req *exchange.Request) *exchange.Response {
		resp := exchange.NewResponse(http.StatusOK, exchange.FromProxy)
		resp.Body = exchange.Bytes(req.Path)
		if req.Body != nil {
			body, _ := io.ReadAll(req.Body)
			resp.Body = exchange.Bytes(body)
		}
		return resp
	}, nil, 1<<20, func(p *peer) {
		var all strings.Builder
		var want []string
		for i := range 20 {
			fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: a\r\nX: %s\r\n\r\n", i, strings.Repeat("x", i*1000))
			want = append(want, fmt.Sprintf("/%d", i))
		}
		body := strings.Repeat("body", 10000)
		all.WriteString(upload(len(body)) + body + get)
		go func() { _, _ = io.WriteString(p, all.String()) }()
		for i, want := range append(want, body, "/") {
			if resp, body, err := p.reads(); body != want {
				t.Fatalf("answer %d is %d, %.100q, %v; want %.100q", i, resp.StatusCode, body, err, want)
			}
		}
	})
}

// brokenForm is a form that cannot write events.
type brokenForm struct{ wire.Form }

func (brokenForm) AppendEvent([]byte, string, wire.Object) ([]byte, error) { panic("a test") }

func (brokenForm) SplitEvent([]byte, string, wire.Object) (head, body, tail []byte, ok bool) {
	panic("a test")
}

// A panic in the middle of an event ends the connection, whose next bytes could belong to the watch.
func TestNoRequestAfterAPanicOfAWatch(t *testing.T) {
	var c *watchcache.Cache
	talk(t, func(*exchange.Request) *exchange.Response {
		p := watchOf(t, c)
		p.Form = brokenForm{p.Form}
		resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		resp.Body = watch.New(p)
		return resp
	}, nil, unbuffered, func(p *peer) {
		c, _ = cachetest.Roomy(t)
		p.sends(get)
		cachetest.Apply(t, c, cachetest.Sized(t, 2, 10))
		_ = p.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := io.ReadAll(p); err != nil {
			t.Errorf("the connection does not end: %v", err)
		}
	})
}
