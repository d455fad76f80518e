package access

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"
)

// relay passes connections on to the apiserver until it is cut.
type relay struct {
	net.Listener
	to string

	mu struct {
		sync.Mutex
		cut   bool
		conns []net.Conn
	}
	running sync.WaitGroup
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: target.Host}
	r.running.Go(r.accept)
	t.Cleanup(func() {
		r.cut()
		r.running.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		near, err := r.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.to)
		if err != nil {
			near.Close()
			continue
		}
		if !r.keep(near, far) {
			continue
		}
		for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
			r.running.Go(func() {
				io.Copy(pair[0], pair[1])
				pair[0].Close()
			})
		}
	}
}

// keep remembers connections to be cut; after that it closes them.
func (r *relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.cut {
		for _, c := range conns {
			c.Close()
		}
		return false
	}
	r.mu.conns = append(r.mu.conns, conns...)
	return true
}

// cut ends all connections and refuses new ones.
func (r *relay) cut() {
	r.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.cut = true
	for _, c := range r.mu.conns {
		c.Close()
	}
	r.mu.conns = nil
}

// When upstream cannot be asked, who was not reviewed before gets nothing, whatever the cache holds. Who was goes on for
// as long as the reviews hold.
func TestReviewsUnavailable(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	between := startRelay(t, w.api.URL)
	f := w.frontAt(t, "https://"+between.Addr().String(), proxyUser, withAnonymous)
	const list = "/api/v1/namespaces/" + teamA + "/pods?resourceVersion=0"
	known := []string{"reader", "certificate"}
	for _, name := range known {
		f.must(t, w.callers[name], request{target: list}) // the cache fills
		if got := f.must(t, w.callers[name], request{target: list}); got.status != ok {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
	}
	before := f.fromCache(t)
	between.cut()
	for _, name := range known {
		if got := f.must(t, w.callers[name], request{target: list}); got.status != ok {
			t.Errorf("%s, reviewed before: %d %s", name, got.status, got.body)
		}
	}
	if after := f.fromCache(t); after != before+len(known) {
		t.Errorf("%d answers came from the cache, want %d", after-before, len(known))
	}
	for _, name := range []string{
		"admin", "one", "nobody", "robot", "garbage", "anonymous", "certified nobody", "certified node", "token as reader",
	} {
		for _, http2 := range []bool{false, true} {
			got := f.must(t, w.callers[name], request{target: list, http2: http2})
			if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
				t.Errorf("%s, HTTP/2 %t: %d %s", name, http2, got.status, got.body)
			}
		}
	}
	if after := f.fromCache(t); after != before+len(known) {
		t.Error("somebody was answered who was not reviewed")
	}
}

// A connection by which nobody known has asked ends with the refusal: it counts for no one.
func TestRefusalEndsConnection(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	f := w.front(t, proxyUser, "")
	conn := f.dial(t, w.callers["garbage"])
	const asked = "GET /version HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer garbage\r\n\r\n"
	if _, err := io.WriteString(conn, asked+asked); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	if err != nil || resp.StatusCode != unknown || !resp.Close {
		t.Fatalf("%+v %v", resp, err)
	}
	io.Copy(io.Discard, resp.Body)
	conn.SetDeadline(time.Now().Add(limit))
	if _, err := from.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
}
