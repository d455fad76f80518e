package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// elsewhere answers any request, and counts them.
func elsewhere(count *atomic.Int64) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		count.Add(1)
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Elsewhere": {"yes"}}, Body: io.NopCloser(strings.NewReader(req.URL.Path)),
		}, nil
	})
}

func lanesTo(l net.Listener, otherwise http.RoundTripper) *lanes {
	return &lanes{
		otherwise: otherwise, base: &url.URL{Scheme: "http", Host: l.Addr().String()},
		dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		},
	}
}

func (l *lanes) get(ctx context.Context, path string) (*http.Response, error) {
	ctx = context.WithValue(ctx, brief{}, false)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	return l.RoundTrip(req)
}

// stop closes all connections without work.
func (l *lanes) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pauseLocked()
}

// ready waits for a connection without work.
func (l *lanes) ready(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	l.mu.failed = time.Time{}
	l.mu.wanted = time.Now()
	l.mu.Unlock()
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		n := len(l.mu.idle)
		l.mu.Unlock()
		if n > 0 {
			return
		}
		if c := l.take(false); c != nil {
			l.mu.Lock()
			l.giveLocked(c)
			l.mu.Unlock()
		}
	}
	t.Fatal("no lane was opened")
}

func TestLanesToUnrulyServers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	var names []string
	for name := range manners {
		if name != "after a pause" { // that takes another clock
			names = append(names, name)
		}
	}
	listener, asked := unruly(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(2) == 0 {
			return "polite"
		}
		return names[random.IntN(len(names))]
	})
	var others, here atomic.Int64
	l := lanesTo(listener, elsewhere(&others))
	defer l.stop()
	l.ready(t)
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for i := range 500 {
				l.mu.Lock()
				l.mu.failed = time.Time{} // or nearly all would go elsewhere
				l.mu.Unlock()
				path := fmt.Sprintf("/%d/%d", client, i)
				resp, err := l.get(t.Context(), path)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					return
				}
				if i%3 == 2 { // who does not want the rest
					_, _ = io.ReadFull(resp.Body, make([]byte, len(path)))
					_ = resp.Body.Close()
					continue
				}
				body, err := io.ReadAll(resp.Body)
				if closed := resp.Body.Close(); closed != nil {
					t.Errorf("%s: close: %v", path, closed)
				}
				manner, _ := asked.Load(path)
				text, _, _ := strings.Cut(strings.TrimRight(string(body), "x"), "HTTP/")
				switch {
				case manner == "half a body" && resp.Header.Get("Elsewhere") == "":
					if err == nil {
						t.Errorf("%s: half a body taken for a whole one", path)
					}
				case err != nil:
					t.Errorf("%s: %v answer: %v", path, manner, err)
				case text != path:
					t.Errorf("%s: answer %.40q to it, manner %v", path, body, manner)
				case resp.Header.Get("Elsewhere") != "":
					time.Sleep(100 * time.Microsecond) // or they would be through before the next is opened
				default:
					here.Add(1)
					if manner == "missing" != (resp.StatusCode == http.StatusNotFound) {
						t.Errorf("%s: %v answer has status %d", path, manner, resp.StatusCode)
					}
				}
			}
		})
	}
	clients.Wait()
	if here.Load() == 0 || others.Load() == 0 {
		t.Errorf("%d gets were answered by a lane, %d elsewhere", here.Load(), others.Load())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.open > laneMost || l.mu.open != len(l.mu.idle) && !l.mu.opening {
		t.Errorf("%d connections are open, %d of them without work", l.mu.open, len(l.mu.idle))
	}
}

// What a server says unasked must not answer the next one who asks.
func TestLaneHearsWhatNobodyAsked(t *testing.T) {
	var speak atomic.Pointer[net.Conn]
	manners["remembered"] = func(c net.Conn, path string) bool {
		speak.Store(&c)
		return says(c, 200, path)
	}
	defer delete(manners, "remembered")
	for _, unasked := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n/other", "", "HTTP/1.1 408 Late\r\n\r\n"} {
		listener, _ := unruly(t, func() string { return "remembered" })
		var others atomic.Int64
		l := lanesTo(listener, elsewhere(&others))
		l.ready(t)
		for i, want := range []int64{0, 1} {
			resp, err := l.get(t.Context(), "/mine")
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "/mine" {
				t.Fatalf("answer %q, %v, to /mine", body, err)
			}
			if others.Load() != want {
				t.Fatalf("get %d: %d went elsewhere, want %d", i, others.Load(), want)
			}
			if i > 0 {
				break
			}
			if unasked == "" {
				_ = (*speak.Load()).Close()
			} else {
				sends(*speak.Load(), unasked)
			}
			l.mu.Lock()
			c := l.mu.idle[0]
			l.mu.Unlock()
			for began := time.Now(); c.quiet(); time.Sleep(time.Millisecond) {
				if time.Since(began) > 10*time.Second {
					t.Fatal("what the server said does not show")
				}
			}
		}
		l.stop()
	}
}

// What would not arrive as it was sent, or not where it was sent to, does not go by a lane.
func TestLanesTakeWhatTheyCanCarry(t *testing.T) {
	listener, asked := unruly(t, func() string { return "polite" })
	var others atomic.Int64
	l := lanesTo(listener, elsewhere(&others))
	defer l.stop()
	l.ready(t)
	for i, change := range []func(*http.Request){
		func(req *http.Request) { req.Header["A"] = []string{"b\r\nImpersonate-User: admin"} },
		func(req *http.Request) { req.Header["A: b\r\nC"] = []string{"d"} },
		func(req *http.Request) { req.Header["A"] = []string{"\x00"} },
		func(req *http.Request) { req.Header["Impersonate-User"] = []string{"admin "} },
		func(req *http.Request) { req.Header["Expect"] = []string{"something"} },
		func(req *http.Request) { req.URL.RawQuery = "a=b c" },
		func(req *http.Request) { req.URL.Host = "127.0.0.1:1" },
		func(req *http.Request) { req.URL.Scheme = "https" },
		func(req *http.Request) { *req = *req.WithContext(t.Context()) },
	} {
		req, err := http.NewRequestWithContext(context.WithValue(t.Context(), brief{}, false), http.MethodGet, l.base.JoinPath("x").String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		change(req)
		resp, err := l.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if _, here := asked.Load("/x"); here || others.Load() != int64(i+1) {
			t.Errorf("%v to %s went by a lane", req.Header, req.URL)
		}
	}
}

// TLS may have read more of the connection than it was asked for.
func TestLaneHearsWhatTLSHasRead(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				held := &holding{Conn: c}
				secured := tls.Server(held, &tls.Config{Certificates: certificate.TLS.Certificates})
				for in := bufio.NewReader(secured); ; {
					_ = c.SetDeadline(time.Now().Add(20 * time.Second))
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					held.hold = true
					says(secured, 200, req.URL.Path)
					says(secured, 200, "/other") // a record of its own
					held.hold = false
					if _, err := c.Write(held.held); err != nil {
						return
					}
					held.held = nil
				}
			}()
		}
	}()
	var others atomic.Int64
	l := lanesTo(listener, elsewhere(&others))
	dial := l.dial
	l.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return tls.Client(&tap{Conn: conn}, &tls.Config{InsecureSkipVerify: true}), nil //nolint:gosec // it is a test's
	}
	defer l.stop()
	l.ready(t)
	for range 20 {
		resp, err := l.get(t.Context(), "/mine")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "/mine" {
			t.Fatalf("answer %q, %v, to /mine", body, err)
		}
	}
	if others.Load() == 0 || others.Load() == 20 {
		t.Errorf("%d of 20 went elsewhere", others.Load())
	}
}

// holding keeps what is written until it is told to send it at once.
type holding struct {
	net.Conn
	hold bool
	held []byte
}

// Write implements net.Conn.
func (h *holding) Write(p []byte) (int, error) {
	if h.hold {
		h.held = append(h.held, p...)
		return len(p), nil
	}
	return h.Conn.Write(p)
}

// Who leaves need not close what he has asked for.
func TestLaneIsFreeWhenItsClientLeaves(t *testing.T) {
	listener, _ := unruly(t, func() string { return "large" })
	l := lanesTo(listener, elsewhere(new(atomic.Int64)))
	defer l.stop()
	l.ready(t)
	ctx, leave := context.WithCancel(t.Context())
	resp, err := l.get(ctx, "/x")
	if err != nil {
		t.Fatal(err)
	}
	leave()
	open := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.mu.open
	}
	for began := time.Now(); open() > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d lanes are taken for ever", open())
		}
	}
	_ = resp.Body.Close()
	if open() != 0 {
		t.Errorf("%d lanes are open after the second end of one", open())
	}
}

func TestNoLanesWhereTheyCouldMissSomething(t *testing.T) {
	for name, config := range map[string]*rest.Config{
		"a wrapped transport":    {WrapTransport: func(next http.RoundTripper) http.RoundTripper { return next }},
		"a transport":            {Transport: elsewhere(new(atomic.Int64))},
		"a dialer":               {Dial: (&net.Dialer{}).DialContext},
		"a proxy":                {Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"})},
		"an exec plugin":         {ExecProvider: &api.ExecConfig{Command: "true", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}},
		"nothing out of the way": {},
	} {
		config.Host = "https://upstream"
		laned := false
		if wrap := withLanes(config).WrapTransport; wrap != nil {
			_, laned = wrap(elsewhere(new(atomic.Int64))).(*lanes)
		}
		if want := name == "nothing out of the way"; laned != want {
			t.Errorf("with %s there are lanes: %t", name, laned)
		}
	}
}

// TestForwardsByLanes looks at how requests come to a server: gets of single objects, and nothing else, over
// HTTP/1.1 when there are many, with the same credentials.
func TestForwardsByLanes(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Protocol", r.Proto)
		w.Header().Set("Credentials", r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if !x509.NewCertPool().AppendCertsFromPEM(authority) {
		t.Fatal("no authority")
	}
	config := &rest.Config{Host: server.URL, BearerToken: "ours", TLSClientConfig: rest.TLSClientConfig{CAData: authority}}
	f, err := forwarderTo(config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, method, authorization string) http.Header {
		t.Helper()
		req := &request{method: method, target: "/api/v1/namespaces/a/pods/b", header: http.Header{}, client: nobody{}}
		if authorization != "" {
			req.header.Set("Authorization", authorization)
		}
		resp := f.forward(ctx, nil, req, func() {})
		if resp.reader == nil {
			t.Fatalf("%s: %d %s", method, resp.status, resp.bytes)
		}
		if _, err := io.ReadAll(resp.reader); err != nil {
			t.Fatal(err)
		}
		return resp.header
	}
	if _, ok := f.own.plain.(utilnet.RoundTripperWrapper); !ok {
		t.Errorf("client-go cannot look through a %T", f.own.plain)
	}
	one := context.WithValue(t.Context(), brief{}, false)
	for _, authorization := range []string{"", "Bearer theirs"} {
		want := authorization
		if want == "" {
			want = "Bearer ours"
		}
		protocol := ""
		for began := time.Now(); protocol != "HTTP/1.1"; {
			header := ask(one, http.MethodGet, authorization)
			if got := header.Get("Credentials"); got != want {
				t.Fatalf("a get with %q arrived with %q by %s", authorization, got, header.Get("Protocol"))
			}
			if protocol = header.Get("Protocol"); time.Since(began) > 20*time.Second {
				t.Fatal("no get went by a lane")
			}
		}
		if got := ask(t.Context(), http.MethodGet, authorization); got.Get("Protocol") != "HTTP/2.0" || got.Get("Credentials") != want {
			t.Errorf("another request arrived by %s with %q", got.Get("Protocol"), got.Get("Credentials"))
		}
	}
}

// Lists, which slow clients may read, hold half of the lanes at most, and as long as they are read.
func TestListsHoldFewLanes(t *testing.T) {
	l := &lanes{}
	for range laneMost {
		conn, other := net.Pipe()
		defer other.Close()
		l.mu.idle = append(l.mu.idle, newLaneConn(conn))
		l.mu.open++
	}
	defer l.stop()
	var lists []*laneConn
	more := func() bool {
		c := l.take(true)
		if c != nil {
			lists = append(lists, c)
		}
		return c != nil
	}
	for range laneLists {
		if !more() {
			t.Fatal("no lane for a list")
		}
	}
	for end, how := range map[string]func(*laneConn){"read": l.give, "broken": l.drop} {
		if more() {
			t.Fatal("a lane too many for lists")
		}
		how(lists[0])
		lists = lists[1:]
		if !more() {
			t.Errorf("no lane for a list when another was %s", end)
		}
	}
	if c := l.take(false); c == nil {
		t.Error("lists have all lanes")
	} else {
		l.give(c)
	}
	for _, c := range lists {
		l.give(c)
	}
	if l.mu.lists != 0 {
		t.Errorf("%d lists hold lanes", l.mu.lists)
	}
}
