package proxy

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// endless is an upstream whose responses have no length and no end, except of /version. It reports
// when a response is given up.
func endless(gaveUp chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		part := bytes.Repeat([]byte("x"), 64<<10)
		for r.URL.Path != "/version" {
			if _, err := w.Write(part); err != nil {
				gaveUp <- struct{}{}
				return
			}
		}
	}
}

// A client that does not read its response does not hold its slot forever, however long the
// response is. The response does not look whole to the client.
func TestUnreadForwardIsCut(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gaveUp := make(chan struct{}, 1)
				s, l := serveForwards(t, endless(gaveUp), testLimits())
				resp := clientTo(t, l, protocol).open(t, "/api/v1/pods")
				time.Sleep(testLimits().Write - time.Second)
				if n := s.limits.queues.forwards.Taken(); n != 1 {
					t.Fatalf("%d slots are taken", n)
				}
				<-gaveUp
				synctest.Wait()
				if n := s.limits.queues.forwards.Taken(); n != 0 {
					t.Errorf("%d slots are taken after the end", n)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err == nil {
					t.Error("to the client the answer ended as if it were whole")
				}
			})
		})
	}
}

// The same is true for HTTP/1.0 on a used connection, although there the proxy writes the response
// itself.
func TestUnreadForwardOfOldClientIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gaveUp := make(chan struct{}, 1)
		_, l := serveForwards(t, endless(gaveUp), testLimits())
		client := dialSlow(t, l, "tls")
		client.send("GET /version HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
		client.answer()
		client.send("GET /api/v1/pods HTTP/1.0\r\nHost: localhost\r\n\r\n")
		<-gaveUp
	})
}

// A request holds a slot while upstream works on it. A request with an endless response counts as
// one of its user's watches instead, whatever its parameters are.
func TestSlotsOfForwards(t *testing.T) {
	type taken struct{ slots, watches int }
	for name, test := range map[string]struct {
		request string
		want    taken
	}{
		"list":                    {"GET /api/v1/pods HTTP/1.1\r\n", taken{slots: 1}},
		"list, upgrade":           {"GET /api/v1/pods HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\n", taken{slots: 1, watches: 1}},
		"log":                     {"GET /api/v1/namespaces/a/pods/b/log HTTP/1.1\r\n", taken{watches: 1}},
		"log, escaped":            {"GET /api/v1/namespaces/a/pods/b/%6cog HTTP/1.1\r\n", taken{watches: 1}},
		"object named log":        {"GET /api/v1/namespaces/a/pods/log HTTP/1.1\r\n", taken{slots: 1}},
		"watch":                   {"GET /api/v1/pods?watch=1 HTTP/1.1\r\n", taken{watches: 1}},
		"watch, escaped":          {"GET /api/v1/pods?%77atch=1 HTTP/1.1\r\n", taken{watches: 1}},
		"old watch":               {"GET /api/v1/watch/pods HTTP/1.1\r\n", taken{watches: 1}},
		"old watch, escaped":      {"GET /api/v1/%77atch/pods HTTP/1.1\r\n", taken{watches: 1}},
		"watch that is none":      {"GET /api/v1/pods?watch=0 HTTP/1.1\r\n", taken{slots: 1}},
		"watch of something else": {"GET /version?watch=1 HTTP/1.1\r\n", taken{slots: 1}},
		"create":                  {"POST /api/v1/namespaces/a/pods?watch=1 HTTP/1.1\r\nContent-Length: 0\r\n", taken{slots: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				arrived := make(chan struct{})
				s, address := serveForwards(t, func(_ http.ResponseWriter, r *http.Request) {
					close(arrived)
					<-r.Context().Done()
				}, testLimits())
				client := dialTLS(t, address)
				send(t, client, test.request+"Host: localhost\r\n\r\n")
				select {
				case <-arrived:
				case <-time.After(testWait):
					t.Fatal("upstream was not asked")
				}
				got := taken{slots: int(s.limits.queues.forwards.Taken()), watches: watchesOf(s)[""]}
				if got != test.want {
					t.Errorf("it takes %+v, want %+v", got, test.want)
				}
				_ = client.Close()
				waitFor(t, "what was taken is given back", func() bool { return int(s.limits.queues.forwards.Taken())+len(watchesOf(s)) == 0 })
			})
		})
	}
}

// An upgraded request of any kind counts as a watch, with the memory of a tunnel. It has no time
// limit, so it holds no slot.
func TestTunnelsAreCounted(t *testing.T) {
	for _, path := range []string{"/api/v1/namespaces/a/pods/p/exec", "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v/vnc"} {
		synctest.Test(t, func(t *testing.T) {
			limits := testLimits()
			limits.UserWatches = 1
			s, address := serveForwards(t, func(w http.ResponseWriter, _ *http.Request) {
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, c)
			}, limits)
			answered := func(want string) net.Conn {
				client := dialTLS(t, address)
				send(t, client, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				if line, err := bufio.NewReader(client).ReadString('\n'); err != nil || !strings.Contains(line, want) {
					t.Fatalf("%s: %q, %v", path, line, err)
				}
				return client
			}
			first := answered(" 101 ")
			if n, slots := usersHold(s), s.limits.queues.forwards.Taken(); n < tunnelSize || slots != 0 {
				t.Errorf("%s takes %d bytes and %d slots", path, n, slots)
			}
			answered(" 429 ")
			_ = first.Close()
			synctest.Wait()
			if n := usersHold(s); n != 0 || len(watchesOf(s)) != 0 {
				t.Errorf("%s: %d bytes, watches %v are held", path, n, watchesOf(s))
			}
		})
	}
}

// waitingForDrain counts the functions that wait for the end of a context.
type waitingForDrain struct {
	context.Context //nolint:containedctx // it is counted
	count           atomic.Int64
}

// Value hides the context's own implementation, so that context.AfterFunc calls AfterFunc.
func (c *waitingForDrain) Value(any) any { return nil }

// AfterFunc counts a function until stop.
func (c *waitingForDrain) AfterFunc(f func()) (stop func() bool) {
	c.count.Add(1)
	stopInner := context.AfterFunc(c.Context, f)
	return func() bool {
		c.count.Add(-1)
		return stopInner()
	}
}

// A forwarded watch that has ended leaves nothing that waits for the drain: a proxy forwards many in its
// life.
func TestForwardedWatchLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.TLS = nil
		s, l := serveTo(t, forwardsAll{}, func(http.ResponseWriter, *http.Request) {}, o)
		draining := &waitingForDrain{Context: s.upstream.draining}
		s.upstream.draining = draining
		for i := range 3 {
			c := dial(t, l)
			send(t, c, "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
			if synctest.Wait(); draining.count.Load() != 0 {
				t.Fatalf("after %d watches, %d functions wait", i+1, draining.count.Load())
			}
		}
	})
}

// A watch over WebSocket ends within the drain time, at a random moment. A command in a pod does not
// end then.
func TestTunnelsDrain(t *testing.T) {
	const upgrade = "HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		defer close(over)
		o := testOptions()
		o.TLS, o.Drain = nil, 10*time.Second
		s, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for err == nil { // the proxy writes to the client when the drain ends
				select {
				case <-time.After(10 * time.Millisecond):
					_, err = c.Write([]byte("event"))
				case <-over:
					return
				}
			}
		}, o)
		open := func(target string) (ended chan time.Time) {
			c := dial(t, l)
			send(t, c, "GET "+target+" "+upgrade)
			reader := bufio.NewReader(c)
			resp, err := http.ReadResponse(reader, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(resp, err)
			}
			ended = make(chan time.Time, 1)
			go func() {
				_, _ = io.Copy(io.Discard, reader)
				ended <- time.Now()
			}()
			return ended
		}
		command := open("/api/v1/namespaces/a/pods/b/exec")
		const watches = 20
		var watching []chan time.Time
		for range watches {
			watching = append(watching, open("/api/v1/pods?watch=1"))
		}
		s.life.Drain()
		end, moments := time.Now().Add(o.Drain), map[time.Time]bool{}
		for _, ended := range watching {
			at := <-ended
			moments[at] = true
			if at.After(end) {
				t.Errorf("a watch ended %s after the drain", at.Sub(end))
			}
		}
		if len(moments) == 1 {
			t.Error("all watches ended at the same time")
		}
		select {
		case <-command:
			t.Error("the command ended too")
		default:
		}
	})
}

// If clients do not read their responses, the proxy reads the responses itself, so that the slots
// become free for others.
func TestUnreadForwardsShareSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.Forwards = 4
		s, l := serveForwards(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				_, _ = w.Write(make([]byte, 900<<10))
			}
		}, limits)
		client := clientTo(t, l, "http/1.1")
		var unread []*http.Response
		for name := range strings.SplitSeq("abcdefghij", "") {
			unread = append(unread, client.open(t, podsPath+"/"+name))
		}
		synctest.Wait()
		if n := s.limits.queues.forwards.Taken(); n > int64(limits.Forwards)/2 {
			t.Errorf("%d of %d slots are taken", n, limits.Forwards)
		}
		began := time.Now()
		code, err := client.send(t.Context(), "", http.MethodPost, podsPath, strings.NewReader("{}"))
		if code != http.StatusOK || err != nil || time.Since(began) > 0 {
			t.Errorf("a write: %d, %v, after %s", code, err, time.Since(began))
		}
		for _, resp := range unread {
			if n, err := io.Copy(io.Discard, resp.Body); n != 900<<10 || err != nil {
				t.Errorf("read %d bytes, %v", n, err)
			}
		}
		synctest.Wait()
		if n := usersHold(s); n != 0 {
			t.Errorf("%d bytes are held after all", n)
		}
	})
}

// Two users who send bodies slowly do not keep a third user waiting.
func TestSlowUploadsHoldNoSlots(t *testing.T) {
	const pieceSize = 20 << 10 // a second, so that the long ones take more than a minute
	for name, test := range map[string]struct {
		protocol string
		whole    int
		known    bool // the body's length
	}{
		"short, HTTP/1.1":                   {"http/1.1", 60 << 10, true},
		"long, HTTP/1.1":                    {"http/1.1", 2 << 20, true},
		"long, HTTP/2":                      {"h2", 2 << 20, true},
		"short, of unknown length, HTTP/2":  {"h2", 60 << 10, false},
		"long, of unknown length, HTTP/1.1": {"http/1.1", 2 << 20, false},
		"long, of unknown length, HTTP/2":   {"h2", 2 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits := testLimits()
				limits.Forwards = 4
				var bytes atomic.Int64
				s, address := serveFeeds(t, forwardsAll{}, func(_ http.ResponseWriter, r *http.Request) {
					n, _ := io.Copy(io.Discard, r.Body)
					bytes.Add(n)
				}, limits, judging(t))
				client := clientTo(t, address, test.protocol)
				var sending sync.WaitGroup
				for _, user := range []string{"a", "b"} {
					for range limits.Forwards / 2 {
						read, upload := io.Pipe()
						body := io.Reader(read)
						if test.known {
							body = sized{read, int64(test.whole)}
						}
						sending.Go(func() {
							defer read.Close()
							if code, err := client.send(t.Context(), user, http.MethodPost, podsPath, body); code != http.StatusOK || err != nil {
								t.Errorf("a slow create: %d, %v", code, err)
							}
						})
						sending.Go(func() {
							piece := make([]byte, pieceSize)
							for range test.whole / len(piece) {
								if _, err := upload.Write(piece); err != nil {
									t.Error(err)
									return
								}
								time.Sleep(time.Second)
							}
							_, _ = upload.Write(piece[:test.whole%len(piece)])
							_ = upload.Close()
						})
					}
				}
				for range test.whole / pieceSize {
					time.Sleep(time.Second / 2)
					if n := s.limits.queues.forwards.Taken(); n != 0 {
						t.Errorf("%d slots are taken by slow uploads", n)
						break
					}
				}
				if code, err := client.send(t.Context(), "c", http.MethodPost, podsPath, strings.NewReader("{}")); code != http.StatusOK || err != nil {
					t.Errorf("a third user's create: %d, %v", code, err)
				}
				sending.Wait()
				if got, want := bytes.Load(), int64(4*test.whole+2); got != want {
					t.Errorf("upstream has read %d bytes, want %d", got, want)
				}
				synctest.Wait()
				if s.limits.queues.forwards.Taken() != 0 || usersHold(s) != 0 {
					t.Errorf("%d slots and %d bytes are taken after the end", s.limits.queues.forwards.Taken(), usersHold(s))
				}
			})
		})
	}
}

// Without memory for the whole of a long body, upstream gets the body while it arrives.
func TestBodyWithoutMemoryIsForwarded(t *testing.T) {
	for _, room := range []int64{1 << 20, 16 << 20} {
		synctest.Test(t, func(t *testing.T) {
			const whole = 2 << 20
			o := testOptions()
			o.Memory = room
			var asked atomic.Bool
			s, l := serveTo(t, forwardsAll{}, func(_ http.ResponseWriter, r *http.Request) {
				asked.Store(true)
				_, _ = io.Copy(io.Discard, r.Body)
			}, o)
			read, upload := io.Pipe()
			client := clientTo(t, l, "h2")
			var sending sync.WaitGroup
			sending.Go(func() {
				defer read.Close()
				if code, err := client.send(t.Context(), "", http.MethodPost, podsPath, sized{read, whole}); code != http.StatusOK || err != nil {
					t.Errorf("a create: %d, %v", code, err)
				}
			})
			_, _ = upload.Write(make([]byte, whole/2))
			synctest.Wait()
			if fits := whole < room; asked.Load() == fits || usersHold(s) > room {
				t.Errorf("in %d bytes: upstream was asked: %t, %d bytes are held", room, asked.Load(), usersHold(s))
			}
			_, _ = upload.Write(make([]byte, whole/2))
			_ = upload.Close()
			sending.Wait()
		})
	}
}
