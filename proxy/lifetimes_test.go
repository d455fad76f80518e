package proxy

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// servePlain runs a server without TLS before upstream. dial opens a connection, which the end of the
// test closes.
func servePlain(t *testing.T, feeds read.Feeds, upstream *rest.Config) (s *Server, dial func() net.Conn) {
	t.Helper()
	forwards, err := forwarderTo(upstream, nil)
	if err != nil {
		t.Fatal(err)
	}
	return servePlainThrough(t, feeds, forwards)
}

func servePlainThrough(t *testing.T, feeds read.Feeds, forwards *forward.Forwarder) (s *Server, dial func() net.Conn) {
	t.Helper()
	o := testOptions()
	o.TLS = nil
	l := conntest.Listen(64 << 20)
	s = serveThrough(t, l, feeds, forwards, o, prometheus.NewRegistry(), zap.NewNop())
	return s, func() net.Conn {
		t.Helper()
		c, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

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
		_, dial := servePlain(t, forwardsAll{}, upstream)
		c := dial()
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
		_, dial := servePlain(t, forwardsAll{}, upstream)
		for _, ask := range []struct {
			pod  string
			want int
		}{{"missing", http.StatusNotFound}, {"b", http.StatusBadGateway}} { // the first one leaves a connection
			c := dial()
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
			for end := time.Now().Add(time.Minute); s.limits.queues.forwards.Taken() != 0 || len(watchesOf(s)) != 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d slots, watches %v are held after the response", s.limits.queues.forwards.Taken(), watchesOf(s))
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
				s, dial := servePlainThrough(t, forwardsAll{}, forwards)
				c := dial()
				if name == "write" {
					send(t, c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
				} else {
					send(t, c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
				}
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				// A response that is written while it arrives breaks off.
				want := http.StatusInternalServerError
				if name == "stream" {
					want = http.StatusOK
				}
				if _, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != want || (err != nil) != (name == "stream") {
					t.Errorf("%+v, %v", resp, err)
				}
				synctest.Wait()
				if n, waits := s.limits.queues.forwards.Taken(), s.upstream.sharing.Waiting(); n != 0 || waits != 0 || usersHold(s) != 0 {
					t.Errorf("%d slots are held, %d readers wait, %d bytes are taken", n, waits, usersHold(s))
				}
			})
		})
	}
}

// The same while the client still uploads. The upload ends with the response.
func TestPanicWithinAnUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uploaded := make(chan error, 1)
		upstream := behind(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			_, _ = io.WriteString(w, "{}")
			_ = http.NewResponseController(w).Flush()
			_, err := io.Copy(io.Discard, r.Body)
			uploaded <- err
		})
		forwards, err := forwarderTo(upstream, func(way http.RoundTripper) http.RoundTripper { return panicking{way} })
		if err != nil {
			t.Fatal(err)
		}
		_, dial := servePlainThrough(t, forwardsAll{}, forwards)
		c := dial()
		send(t, c, "POST /api/v1/namespaces/a/services/s/proxy/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err == nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s, %q", resp.Status, body)
		}
		synctest.Wait()
		_, _ = io.WriteString(c, "5\r\nhello\r\n") // the connection may be closed
		if err := <-uploaded; err == nil {
			t.Error("to upstream, the body looks whole")
		}
	})
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
			_, dial := servePlain(t, forwardsAll{}, upstream)
			c := dial()
			send(t, c, "POST "+path+" HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			all, err := io.ReadAll(c)
			head, body, _ := strings.Cut(string(all), "\r\n\r\n")
			if body != long || err != nil {
				t.Errorf("%s: %d bytes, want %d, %v, after %q", path, len(body), len(long), err, head)
			}
		})
	}
}

// A client pipelines a write, a watch and a write whose body arrives in pieces. Fasthttp has read the
// beginning of the second write with the body of the first, and it drops what it has read when the
// watch begins. So the connection ends with the watch. Otherwise the rest of the second write would
// count as a request.
func TestNothingFollowsABufferedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		upstream := behind(t, func(_ http.ResponseWriter, r *http.Request) { heard = append(heard, r.Method+" "+r.URL.Path) })
		cache, _ := cachetest.ConfigMaps(t, 3)
		_, dial := servePlain(t, oneFeed{feed: &rawFeed{cache}}, upstream)
		c := dial()
		const post = "POST /api/v1/namespaces/a/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
		first, second := strings.Repeat("x", 1000), "DELETE /api/v1/namespaces/a/secrets/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
		send(t, c, post+"4\r\n\r\nbody"+
			"GET /api/v1/namespaces/a/configmaps?watch=1&resourceVersion=0&timeoutSeconds=2 HTTP/1.1\r\nHost: localhost\r\n\r\n"+
			post+strconv.Itoa(len(first)+len(second))+"\r\n\r\n"+first)
		synctest.Wait()
		send(t, c, second)
		from := bufio.NewReader(c)
		for _, last := range []bool{false, true} {
			resp, err := http.ReadResponse(from, nil)
			if err != nil || resp.Close != last {
				t.Fatalf("%+v, %v", resp, err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
		}
		if _, err := from.ReadByte(); err == nil {
			t.Error("the connection goes on after the watch")
		}
		if len(heard) != 1 {
			t.Errorf("upstream has heard %q", heard)
		}
	})
}

// A client sends two requests and leaves during the first. The second does not run on: its client is
// known to be gone when it begins.
func TestGoneBeforeItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		upstream := behind(t, func(w http.ResponseWriter, r *http.Request) {
			open.Add(1)
			defer open.Add(-1)
			if strings.HasSuffix(r.URL.Path, "/log") {
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		})
		s, dial := servePlain(t, forwardsAll{}, upstream)
		c := dial()
		send(t, c, "GET /api/v1/namespaces/a/secrets/x HTTP/1.1\r\nHost: localhost\r\n\r\n"+
			"GET /api/v1/namespaces/a/pods/p/log?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
		synctest.Wait()
		if err := c.(*conntest.Socket).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n, watches := open.Load(), watchesOf(s); n != 0 || len(watches) != 0 || s.limits.queues.forwards.Taken() != 0 || s.Connections() != 0 {
			t.Errorf("%d requests are open upstream, %v watches, %d slots, %d connections", n, watches, s.limits.queues.forwards.Taken(), s.Connections())
		}
	})
}

// Equal lists share a response that is too long to be shared, so one of them gets it while it arrives.
// This one ends with its client, too.
func TestLeaderOfLongResponseLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, open atomic.Int64
		first := make(chan struct{})
		upstream := behind(t, func(w http.ResponseWriter, r *http.Request) {
			open.Add(1)
			defer open.Add(-1)
			if asked.Add(1) == 1 {
				<-first
				return
			}
			_, _ = w.Write(make([]byte, 5<<20))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		s, dial := servePlain(t, forwardsAll{}, upstream)
		var clients []net.Conn
		for range 3 {
			c := dial()
			clients = append(clients, c)
			send(t, c, "GET /apis/example.com/v1/things HTTP/1.1\r\nHost: localhost\r\n\r\n")
			synctest.Wait()
		}
		close(first)
		time.Sleep(5 * time.Second)
		if n := open.Load(); n != 2 {
			t.Fatalf("%d requests are open upstream before the clients leave", n)
		}
		for _, c := range clients {
			if err := c.(*conntest.Socket).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if n := open.Load(); n != 0 || s.limits.queues.forwards.Taken() != 0 || s.Connections() != 0 {
			t.Errorf("%d requests are open upstream, %d slots are taken, %d connections are open", n, s.limits.queues.forwards.Taken(), s.Connections())
		}
	})
}

// Upstream dies during an upload. This is not the fault of the client, and the request may have been
// executed.
func TestUpstreamDiesDuringTheUpload(t *testing.T) {
	for _, from := range []string{"h2", "http/1.1"} {
		for _, path := range []string{"/api/v1/namespaces/a/services/b/proxy/x", "/apis/example.com/v1/namespaces/a/things"} {
			synctest.Test(t, func(t *testing.T) {
				s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), TLSConfig: selfSigned(), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadFull(r.Body, make([]byte, 10))
					panic(http.ErrAbortHandler)
				})}
				l := conntest.Listen(1 << 20)
				var serving sync.WaitGroup
				serving.Go(func() { _ = s.ServeTLS(l, "", "") })
				defer serving.Wait()
				defer s.Close()
				config := clientConfig("h2", func(context.Context, string, string) (net.Conn, error) { return l.Dial() })
				front := conntest.Listen(1 << 20)
				serveBefore(t, front, forwardsAll{}, config, testOptions(), prometheus.NewRegistry(), zap.NewNop())
				body, upload := io.Pipe()
				var sending sync.WaitGroup
				sending.Go(func() {
					for {
						if _, err := upload.Write(make([]byte, 3000)); err != nil {
							return
						}
						time.Sleep(time.Millisecond)
					}
				})
				transport := &http.Transport{TLSClientConfig: insecure(from), ForceAttemptHTTP2: from == "h2", DialContext: func(context.Context, string, string) (net.Conn, error) { return front.Dial() }}
				defer transport.CloseIdleConnections()
				code, err := (&httpClient{transport, "https://localhost"}).send(t.Context(), "", http.MethodPost, path, body)
				if code != http.StatusBadGateway || err != nil {
					t.Errorf("%s, %s: %d, %v", from, path, code, err)
				}
				_ = body.Close()
				sending.Wait()
			})
		}
	}
}
