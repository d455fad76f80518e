package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"reflect"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// The context behaves like a context of package context, for calls before and after its end.
// Functions run once, unless they were stopped earlier.
func TestContext(t *testing.T) {
	var c Context
	if c.Err() != nil {
		t.Fatal("a new context has ended")
	}
	child, cancel := context.WithCancel(&c)
	defer cancel()
	var ran sync.Map
	register := func(name string) func() bool {
		return c.AfterFunc(func() {
			if _, twice := ran.LoadOrStore(name, true); twice {
				t.Error(name, "ran twice")
			}
		})
	}
	register("first")
	stopped := register("stopped")
	late := register("last")
	if !stopped() || stopped() {
		t.Error("a function is stopped once")
	}
	early := c.Done()
	var running sync.WaitGroup
	for range 2 {
		c.End(running.Go)
	}
	running.Wait()
	for _, done := range []<-chan struct{}{early, c.Done(), child.Done()} {
		<-done
	}
	if !errors.Is(c.Err(), context.Canceled) || late() {
		t.Errorf("after the end: %v, or a function was stopped too late", c.Err())
	}
	for name, want := range map[string]bool{"first": true, "stopped": false, "last": true} {
		if _, got := ran.Load(name); got != want {
			t.Errorf("%s ran: %v", name, got)
		}
	}
	after := make(chan struct{})
	context.AfterFunc(&c, func() { close(after) })
	<-after
}

type connFrom struct {
	Conn
	addr net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.addr }

// The reviews of an open watch use the same credentials as the authentication, and nothing else
// from the request.
func TestCredentials(t *testing.T) {
	own := http.Header{
		"Authorization": {"Bearer one", "Bearer two"}, "Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.dA"},
		"Impersonate-User": {"jane"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Extra-Scopes": {"view"},
	}
	req := &Request{Header: own.Clone(), Conn: connFrom{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 3}}, TLS: &tls.ConnectionState{ServerName: "proxy"}}
	req.Header["User-Agent"] = []string{"kubectl"}
	if got := req.Credentials().AsHTTP(t.Context()); len(got.Header) > 0 || got.TLS != nil || got.RemoteAddr != "" {
		t.Errorf("nobody was authenticated, and %v %v %q is kept", got.Header, got.TLS, got.RemoteAddr)
	}
	req.Identity = &access.Caller{}
	got := req.Credentials().AsHTTP(t.Context())
	if !reflect.DeepEqual(got.Header, own) || got.TLS != req.TLS || got.RemoteAddr != "192.0.2.1:3" {
		t.Errorf("%v %v %q", got.Header, got.TLS, got.RemoteAddr)
	}
}
