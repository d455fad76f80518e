package proxy

import (
	"bufio"
	"context"
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
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// manners are what a server does with a request; those behind polite are all that may show.
var manners = map[string]func(c net.Conn, path string) (goOn bool){
	"polite":  func(c net.Conn, path string) bool { return says(c, 200, path) },
	"missing": func(c net.Conn, path string) bool { return says(c, 404, path) },
	"chunks": func(c net.Conn, path string) bool {
		return sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", path[:1], len(path)-1, path[1:]))
	},
	"large": func(c net.Conn, path string) bool { return says(c, 200, path+strings.Repeat("x", 100<<10)) },
	"slowly": func(c net.Conn, path string) bool { // and what comes late looks like an answer
		late := "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n?"
		if !sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path+late), path)) {
			return false
		}
		time.Sleep(time.Millisecond)
		return sends(c, late)
	},
	"closes": func(c net.Conn, path string) bool {
		return sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(path), path)) && false
	},
	"until the end": func(c net.Conn, path string) bool { return sends(c, "HTTP/1.1 200 OK\r\n\r\n"+path) && false },
	"leaves":        func(c net.Conn, path string) bool { return says(c, 200, path) && false },
	"nothing":       func(net.Conn, string) bool { return false },
	"garbage":       func(c net.Conn, path string) bool { return sends(c, "HTTP/2.0 of course\r\n\r\n"+path) },
	"half a header": func(c net.Conn, _ string) bool { return sends(c, "HTTP/1.1 200 OK\r\nContent-Le") && false },
	"half a body": func(c net.Conn, path string) bool {
		return sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path)+9, path)) && false
	},
	"hints": func(c net.Conn, path string) bool {
		return sends(c, "HTTP/1.1 103 Early Hints\r\n\r\n") && says(c, 200, path)
	},
	"late": func(c net.Conn, _ string) bool { return says(c, 408, "/the/connection") && false },
	"twice": func(c net.Conn, path string) bool {
		one := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path), path)
		return sends(c, one+strings.ReplaceAll(one, path, strings.Repeat("?", len(path))))
	},
	"endless header": func(c net.Conn, _ string) bool {
		line := "X: " + strings.Repeat("x", 4<<10) + "\r\n"
		return sends(c, "HTTP/1.1 200 OK\r\n"+strings.Repeat(line, laneHeader/len(line)+10)) && false
	},
}

func says(c net.Conn, status int, body string) bool {
	return sends(c, fmt.Sprintf("HTTP/1.1 %d Whatever\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body))
}

func sends(c net.Conn, text string) bool {
	_, err := io.WriteString(c, text)
	return err == nil
}

// unruly is a server that has its manners from choose.
func unruly(t *testing.T, choose func() string) (l net.Listener, asked *sync.Map) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked = &sync.Map{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				for in := bufio.NewReader(c); ; {
					_ = c.SetDeadline(time.Now().Add(20 * time.Second))
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					manner := choose()
					asked.Store(req.URL.Path, manner)
					if !manners[manner](c, req.URL.Path) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l, asked
}

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
	ctx = context.WithValue(ctx, oneObject{}, oneObject{})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	return l.RoundTrip(req)
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
		if c := l.take(); c != nil {
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
		names = append(names, name)
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
	defer l.pause()
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
		l.pause()
	}
}

// What would not arrive as it was sent, or not where it was sent to, does not go by a lane.
func TestLanesTakeWhatTheyCanCarry(t *testing.T) {
	listener, asked := unruly(t, func() string { return "polite" })
	var others atomic.Int64
	l := lanesTo(listener, elsewhere(&others))
	defer l.pause()
	l.ready(t)
	for i, change := range []func(*http.Request){
		func(req *http.Request) { req.Header["A"] = []string{"b\r\nImpersonate-User: admin"} },
		func(req *http.Request) { req.Header["A: b\r\nC"] = []string{"d"} },
		func(req *http.Request) { req.Header["A"] = []string{"\x00"} },
		func(req *http.Request) { req.URL.Host = "127.0.0.1:1" },
		func(req *http.Request) { *req = *req.WithContext(t.Context()) },
	} {
		req, err := http.NewRequestWithContext(context.WithValue(t.Context(), oneObject{}, oneObject{}), http.MethodGet, l.base.JoinPath("x").String(), nil)
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

// pipes are connections to a server that takes requests and says what answer does, after a while.
func pipes(answer string, after time.Duration, opened *atomic.Int64) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		opened.Add(1)
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			for in := bufio.NewReader(theirs); ; {
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				time.Sleep(after)
				if !sends(theirs, answer) {
					return
				}
			}
		}()
		return ours, nil
	}
}

func TestLaneTimes(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	setup := func(t *testing.T, after time.Duration) (l *lanes, opened, others *atomic.Int64) {
		opened, others = new(atomic.Int64), new(atomic.Int64)
		l = &lanes{otherwise: elsewhere(others), base: &url.URL{Scheme: "http", Host: "upstream"}, dial: pipes(answer, after, opened)}
		t.Cleanup(func() {
			l.pause()
			time.Sleep(laneRest + time.Minute) // for the timers
		})
		return l, opened, others
	}
	get := func(t *testing.T, l *lanes) (header http.Header, took time.Duration) {
		began := time.Now()
		resp, err := l.get(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.Header, time.Since(began)
	}
	t.Run("demand", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, opened, others := setup(t, 0)
			for range 5 {
				get(t, l)
				time.Sleep(2 * laneDemand)
			}
			if opened.Load() != 0 || others.Load() != 5 {
				t.Errorf("%d connections were opened for rare gets, %d went elsewhere", opened.Load(), others.Load())
			}
			get(t, l)
			get(t, l)
			synctest.Wait()
			if opened.Load() != 1 || others.Load() != 7 {
				t.Errorf("%d connections were opened for frequent gets, %d went elsewhere", opened.Load(), others.Load())
			}
			if get(t, l); others.Load() != 7 {
				t.Error("the lane was not used")
			}
		})
	})
	t.Run("rest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, _, _ := setup(t, 0)
			get(t, l)
			get(t, l)
			synctest.Wait()
			time.Sleep(2*laneRest + time.Second)
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.mu.idle) != 0 || l.mu.open != 0 || l.mu.closing {
				t.Errorf("%d connections without work are kept, %d open", len(l.mu.idle), l.mu.open)
			}
		})
	})
	t.Run("silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, opened, others := setup(t, time.Hour)
			defer time.Sleep(2 * time.Hour) // for the server
			get(t, l)
			get(t, l)
			synctest.Wait()
			header, took := get(t, l)
			if header.Get("Elsewhere") == "" || took < laneSilence || took > 2*laneSilence {
				t.Errorf("a get by a silent lane took %s: %v", took, header)
			}
			get(t, l)
			get(t, l)
			synctest.Wait()
			if opened.Load() != 1 || others.Load() != 5 {
				t.Errorf("%d connections were opened to a server that had just been silent, %d gets went elsewhere", opened.Load(), others.Load())
			}
		})
	})
	t.Run("client leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, _, others := setup(t, time.Hour)
			defer time.Sleep(2 * time.Hour)
			get(t, l)
			get(t, l)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := l.get(ctx, "/"); err == nil || others.Load() != 2 {
				t.Errorf("a get whose client left ended with %v, and %d went elsewhere", err, others.Load())
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.mu.open != 0 || !l.mu.failed.IsZero() {
				t.Errorf("%d connections are open; failed %v", l.mu.open, l.mu.failed)
			}
		})
	})
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
	one := context.WithValue(t.Context(), oneObject{}, oneObject{})
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
