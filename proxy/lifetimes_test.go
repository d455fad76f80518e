package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
)

// A client sends a write in chunks behind a read, and dies between two chunks. The write is broken, so
// upstream does not execute it.
func TestPipelinedTruncatedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var executed atomic.Int64
		upstream := behind(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				<-r.Context().Done()
			} else if _, err := io.ReadAll(r.Body); err == nil {
				executed.Add(1)
			}
		})
		o := testOptions()
		o.TLS = nil
		l := conntest.Listen(1 << 20)
		serveBefore(t, l, forwardsAll{}, upstream, o, prometheus.NewRegistry(), zap.NewNop())
		c, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		send(t, c, "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n")
		synctest.Wait()
		send(t, c, "POST /api/v1/namespaces/a/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		if err := c.(*conntest.Socket).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := executed.Load(); n != 0 {
			t.Errorf("upstream has executed %d truncated writes", n)
		}
	})
}

// A command in a pod over WebSocket is a GET. It is executed once, although upstream dies before its
// response, on a connection that had served another request.
func TestUpgradeIsNotSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var executed atomic.Int64
		upstream := behind(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/missing/") {
				http.NotFound(w, r)
				return
			}
			executed.Add(1)
			panic(http.ErrAbortHandler)
		})
		o := testOptions()
		o.TLS = nil
		l := conntest.Listen(1 << 20)
		serveBefore(t, l, forwardsAll{}, upstream, o, prometheus.NewRegistry(), zap.NewNop())
		for _, ask := range []struct {
			pod  string
			want int
		}{{"missing", http.StatusNotFound}, {"b", http.StatusBadGateway}} { // the first one leaves a connection
			c, err := l.Dial()
			if err != nil {
				t.Fatal(err)
			}
			send(t, c, "GET /api/v1/namespaces/a/pods/"+ask.pod+"/exec?command=x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n"+
				"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != ask.want {
				t.Errorf("%s: %+v, %v", ask.pod, resp, err)
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			_ = c.Close()
			synctest.Wait()
		}
		if n := executed.Load(); n != 1 {
			t.Errorf("the command was executed %d times", n)
		}
	})
}

// An upstream answers with 101 but names no protocol, as a pod may. This is an error of one request,
// which then holds nothing. The next request on the connection is answered.
func TestUpstreamSwitchesToNothing(t *testing.T) {
	for name, request := range map[string]string{
		"list":   "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"proxy":  "GET /api/v1/namespaces/a/pods/b/proxy/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"upload": "POST /apis/example.com/v1/namespaces/a/things HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			o.TLS = nil
			s, address := serveSocket(t, forwardsAll{}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/version" {
					return
				}
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
				_, _ = io.Copy(io.Discard, c)
			}, o)
			c, err := net.Dial("tcp", address.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			reader := bufio.NewReader(c)
			ask := func(request string, want int) {
				send(t, c, request)
				resp, err := http.ReadResponse(reader, nil)
				if err != nil || resp.StatusCode != want {
					t.Fatalf("%+v, %v", resp, err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			ask(request, http.StatusBadGateway)
			if name != "upload" { // its connection cannot be used again
				ask("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", http.StatusOK)
			}
			for end := time.Now().Add(time.Minute); s.forwardSlots.Taken() != 0 || len(watchesOf(s)) != 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d slots, watches %v are held after the response", s.forwardSlots.Taken(), watchesOf(s))
				}
			}
		})
	}
}

// The proxy panics while it reads upstream's response. Then the request holds nothing.
func TestPanicWithinAResponse(t *testing.T) {
	for name, path := range map[string]string{"read": podsPath, "write": podsPath + "?dryRun=All", "stream": "/apis/example.com/v1/things"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				upstream := behind(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
				forwards, err := forwarderTo(upstream, func(way http.RoundTripper) http.RoundTripper { return panicking{way} })
				if err != nil {
					t.Fatal(err)
				}
				o := testOptions()
				o.TLS = nil
				l := conntest.Listen(1 << 20)
				s := serveThrough(t, l, forwardsAll{}, forwards, o, prometheus.NewRegistry(), zap.NewNop())
				c, err := l.Dial()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if name == "write" {
					send(t, c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
				} else {
					send(t, c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
				}
				// A response that is written while it arrives breaks off.
				if resp, err := http.ReadResponse(bufio.NewReader(c), nil); (err != nil) != (name == "stream") || err == nil && resp.StatusCode != http.StatusInternalServerError {
					t.Errorf("%+v, %v", resp, err)
				}
				synctest.Wait()
				if n, waits := s.forwardSlots.Taken(), s.sharing.Waiting(); n != 0 || waits != 0 || s.workspace.Taken() != 0 {
					t.Errorf("%d slots are held, %d readers wait, %d bytes are taken", n, waits, s.workspace.Taken())
				}
			})
		})
	}
}

// panicking is a transport whose responses panic when they are read.
type panicking struct{ http.RoundTripper }

func (p panicking) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = panickingBody{resp.Body}
	}
	return resp, err
}

type panickingBody struct{ io.ReadCloser }

func (panickingBody) Read([]byte) (int, error) { panic("a test") }

// A client of HTTP/1.0 gets a response without chunks, also after a request with a body.
func TestOldClientGetsNoChunks(t *testing.T) {
	for _, path := range []string{"/api/v1/namespaces/a/configmaps", "/apis/example.com/v1/namespaces/a/things", "/api/v1/namespaces/a/services/b/proxy/"} {
		synctest.Test(t, func(t *testing.T) {
			long := strings.Repeat("x", 200<<10)
			upstream := behind(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, long)
			})
			o := testOptions()
			o.TLS = nil
			l := conntest.Listen(1 << 20)
			serveBefore(t, l, forwardsAll{}, upstream, o, prometheus.NewRegistry(), zap.NewNop())
			c, err := l.Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			send(t, c, "POST "+path+" HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			all, err := io.ReadAll(c)
			head, body, _ := strings.Cut(string(all), "\r\n\r\n")
			if body != long || err != nil {
				t.Errorf("%s: %d bytes, want %d, %v, after %q", path, len(body), len(long), err, head)
			}
		})
	}
}
