package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// usersHold returns the bytes that users hold.
func usersHold(s *Server) int64 {
	return s.limits.queues.memory.Taken() + s.limits.queues.lasting.Taken() + s.limits.queues.unread.Taken()
}

// A user's requests hold memory until they are answered. Beyond half of the memory for requests, they
// are refused, and another user's are not. The memory is given back with the responses.
func TestOpenRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1 << 20
		gate := make(chan struct{})
		o := testOptions()
		o.Access, o.Memory = judging(t), most
		s, l := serveTo(t, forwardsAll{}, func(http.ResponseWriter, *http.Request) { <-gate }, o)
		var refused, answered atomic.Int64
		var asking sync.WaitGroup
		ask := func(by string) {
			client := clientTo(t, l, "h2")
			for i := range 100 {
				asking.Go(func() {
					code, err := client.send(t.Context(), by, http.MethodGet, fmt.Sprint(podsPath, "/", i), nil)
					switch {
					case err != nil:
						t.Error(err)
					case code == http.StatusTooManyRequests:
						refused.Add(1)
					default:
						answered.Add(1)
					}
				})
			}
			synctest.Wait()
		}
		ask("greedy")
		if n := s.limits.queues.memory.Taken(); refused.Load() == 0 || answered.Load() != 0 || n > most/2 || n < most/4 {
			t.Errorf("%d bytes are held, %d requests were refused, %d answered", n, refused.Load(), answered.Load())
		}
		before := refused.Load()
		code := make(chan int, 1)
		asking.Go(func() {
			n, _ := clientTo(t, l, "h2").send(t.Context(), "modest", http.MethodGet, podsPath, nil)
			code <- n
		})
		synctest.Wait()
		if refused.Load() != before || usersHold(s) <= most/4 {
			t.Error("another user's request is refused")
		}
		close(gate)
		asking.Wait()
		if n := <-code; n != http.StatusOK {
			t.Errorf("the other user got %d", n)
		}
		synctest.Wait()
		if n := usersHold(s); n != 0 {
			t.Errorf("%d bytes are held in the end", n)
		}
	})
}

// A request without room has no Memory. So it is given up before its refusal waits for the client.
func TestRefusedRequestHasNoMemory(t *testing.T) {
	o := testOptions()
	o.Memory = 1
	s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, o)
	req := &exchange.Request{Method: http.MethodGet, Target: podsPath, Path: podsPath, Host: "localhost", Conn: noConn{}, Header: http.Header{}}
	if resp := s.Handle(t.Context(), req); resp.Status != http.StatusTooManyRequests || req.Memory != nil {
		t.Errorf("%d, and memory: %t", resp.Status, req.Memory != nil)
	}
}

// unreadStreams opens streams whose client gives no window.
func unreadStreams(t *testing.T, l *rawListener, n int, path string) (c *slowClient, resets *atomic.Int64) {
	t.Helper()
	c, resets = dialSlow(t, l, "h2"), new(atomic.Int64)
	c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.pings = true
	go func() {
		for {
			f, err := c.frames.ReadFrame()
			if err != nil {
				return
			}
			c.pong(f)
			if _, ok := f.(*http2.RSTStreamFrame); ok {
				resets.Add(1)
			}
		}
	}()
	for i := range uint32(n) {
		if err := ask2(c.frames, 2*i+1, path); err != nil {
			t.Fatal(err)
		}
	}
	return c, resets
}

// Responses to gets hold memory until they are read. If there is no room for a large object, upstream
// answers.
func TestUnreadGetsAreBounded(t *testing.T) {
	for size, large := range map[int]bool{1 << 20: true, 30 << 10: false} {
		synctest.Test(t, func(t *testing.T) {
			const streams, room = 20, 4 << 20
			c, _ := cachetest.Roomy(t)
			cachetest.Apply(t, c, cachetest.Sized(t, 10, size))
			o := testOptions()
			o.Memory = room
			var forwarded atomic.Int64
			s, l := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(http.ResponseWriter, *http.Request) { forwarded.Add(1) }, o)
			object := cachetest.Sized(t, 10, size)
			client, _ := unreadStreams(t, l, streams, fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%s?resourceVersion=0", object.Namespace(), nameOf(object.Key())))
			time.Sleep(10 * time.Second)
			synctest.Wait()
			held := usersHold(s)
			switch {
			case large && (held < room/2 || held > room || forwarded.Load() == 0):
				t.Errorf("%d bytes are held, upstream was asked %d times", held, forwarded.Load())
			case !large && held < streams*int64(size):
				t.Errorf("%d bytes are held", held)
			}
			client.Close()
			synctest.Wait()
			time.Sleep(time.Minute)
			if n := usersHold(s); n != 0 {
				t.Errorf("%d bytes are held in the end", n)
			}
		})
	}
}

// Long headers of forwarded responses hold memory until the responses have been written. Without
// room, a read is refused, and a write learns that it has been executed.
func TestUnreadHeadersAreBounded(t *testing.T) {
	const path = "/api/v1/namespaces/a/pods/p/proxy/"
	serve := func(t *testing.T, room int64) (*Server, *rawListener) {
		o := testOptions()
		o.Memory = room
		return serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 10 {
				w.Header().Set(fmt.Sprint("A", i), strings.Repeat("a", 5<<10))
			}
			_, _ = w.Write(make([]byte, 1<<10))
		}, o)
	}
	synctest.Test(t, func(t *testing.T) {
		const streams = 10
		s, l := serve(t, 16<<20)
		client, _ := unreadStreams(t, l, streams, path)
		synctest.Wait()
		if n := usersHold(s); n < streams*2*50<<10 {
			t.Errorf("%d bytes are held", n)
		}
		client.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := usersHold(s); n != 0 {
			t.Errorf("%d bytes are held in the end", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, l := serve(t, 128<<10) // for each request, but not for the headers
		for method, want := range map[string]int{http.MethodGet: http.StatusTooManyRequests, http.MethodPost: http.StatusBadGateway} {
			code, err := clientTo(t, l, "h2").send(t.Context(), "", method, path, nil)
			if err != nil || code != want {
				t.Errorf("%s without room for its response: %d, %v, want %d", method, code, err, want)
			}
		}
		synctest.Wait()
		if n := usersHold(s); n != 0 {
			t.Errorf("%d bytes are held in the end", n)
		}
	})
}

func nameOf(key string) string { return key[strings.IndexByte(key, '/')+1:] }

// The unread events of watches need room, over HTTP/2 and HTTP/1.1: a piece, or the
// length of a larger event. Watches without room end. The room is given back when they have ended.
func TestUnreadCachedWatchesHoldRoom(t *testing.T) {
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, size := range []int{30 << 10, 1 << 20} {
			t.Run(fmt.Sprint(protocol, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { unreadCachedWatches(t, protocol, size) })
			})
		}
	}
}

func unreadCachedWatches(t *testing.T, protocol string, size int) {
	const most, watches = 4, 10
	piece := exchange.PieceSize
	if protocol != "h2" {
		piece *= 2 // with what TLS makes of it; over HTTP/2 the connection's own room has that
	}
	room := most * int64(max(size+1<<10, piece))
	c, _ := cachetest.Roomy(t)
	o := testOptions()
	o.Memory, o.Limits.Stall = 2*room, 5*time.Minute
	s, l := serveTo(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, o)
	const path = "/api/v1/configmaps?watch=1&resourceVersion=0"
	var clients []*slowClient
	if protocol == "h2" {
		client, _ := unreadStreams(t, l, watches, path)
		clients = append(clients, client)
	} else {
		for range watches {
			client := dialSlow(t, l, "tls")
			send(t, client, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
			for head := []byte(nil); !bytes.HasSuffix(head, []byte("\r\n\r\n")); {
				head = append(head, 0)
				if _, err := client.Read(head[len(head)-1:]); err != nil {
					t.Fatal(err)
				}
			}
			clients = append(clients, client)
		}
	}
	synctest.Wait()
	cachetest.Apply(t, c, cachetest.Sized(t, 10, size))
	time.Sleep(3 * time.Second)
	synctest.Wait()
	if held, n := s.limits.queues.unread.Taken(), watchesOf(s)[""]; held > room || held < room*9/10 || n != most {
		t.Errorf("%d bytes are held, %d watches are open, want %d and %d", held, n, room, most)
	}
	for _, client := range clients {
		client.Close()
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if held := usersHold(s); held != 0 || len(watchesOf(s)) != 0 {
		t.Errorf("%d bytes are held in the end", held)
	}
}

// An open watch holds memory. Long selectors hold much. Beyond half of the memory of all watches, a user's
// watches are refused, and another user's are not.
func TestMemoryOfWatchesIsBounded(t *testing.T) {
	s, _ := logging(Options{Fixed: Fixed{Memory: 2 << 20}, Options: read.Options{Access: &access.Access{}}, Limits: testLimits()})
	open := func(by, target string) (done func(), ok bool) {
		done, refusal := s.limits.AdmitWatch(&exchange.Request{Target: target, Header: http.Header{}, Identity: &access.Caller{User: &user.DefaultInfo{Name: by}}})
		return done, refusal == nil
	}
	const pods = "/api/v1/pods?watch=1"
	for _, test := range []struct {
		target string
		most   int
	}{{pods, 510}, {pods + "&labelSelector=" + strings.Repeat("x", 8<<10), 7}} {
		target, most := test.target, test.most
		var all []func()
		for {
			done, ok := open("greedy", target)
			if !ok {
				break
			}
			all = append(all, done)
		}
		if len(all) < most*9/10 || len(all) > most {
			t.Errorf("%d watches with %d bytes of selectors are open, want %d", len(all), len(target), most)
		}
		other, ok := open("modest", target)
		if !ok {
			t.Fatal("another user's watch is refused")
		}
		for _, done := range append(all, other, other) {
			done()
		}
		if n := usersHold(s); n != 0 || len(watchesOf(s)) != 0 {
			t.Errorf("%d bytes are held in the end", n)
		}
	}
}

// Header blocks that several frames carry count as heads until they are complete.
func TestHeaderBlocksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Strangers = 32 << 20
		s, l := serveTo(t, forwardsAll{}, http.NotFound, o)
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for i := range 14 {
			_ = encoder.WriteField(hpack.HeaderField{Name: fmt.Sprint("x", i), Value: strings.Repeat("~", 3<<10), Sensitive: true})
		}
		const clients, frame = 400, 16 << 10
		var told atomic.Int64
		for range clients {
			c := dialSlow(t, l, "h2")
			c.greet()
			go func() {
				for {
					f, err := c.frames.ReadFrame()
					if err != nil {
						return
					}
					if away, ok := f.(*http2.GoAwayFrame); ok && away.ErrCode == http2.ErrCodeEnhanceYourCalm {
						told.Add(1)
					}
				}
			}()
			raw := block.Bytes()
			err := c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: raw[:frame]})
			for raw = raw[frame:]; err == nil && len(raw) > 0; raw = raw[min(frame, len(raw)):] {
				err = c.frames.WriteContinuation(1, false, raw[:min(frame, len(raw))])
			}
		}
		synctest.Wait()
		n := testutil.ToFloat64(s.metrics.Refused.WithLabelValues("heads"))
		if n == 0 || n > clients/2 || int64(n) != told.Load() {
			t.Errorf("%v of %d clients were refused, and %d were told", n, clients, told.Load())
		}
	})
}

// While a watch is open, its request counts no more, because the watch counts with what it keeps.
func TestOpenWatchHoldsNoRequest(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		synctest.Test(t, func(t *testing.T) {
			c, at := cachetest.ConfigMaps(t, 3)
			s, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, testOptions())
			watch := clientTo(t, address, protocol).open(t, watchTarget+strconv.FormatUint(at.ResourceVersion(), 10))
			synctest.Wait()
			if held := usersHold(s); held < watchSize || held > 2*watchSize { // a request holds more
				t.Errorf("%s: an open watch holds %d bytes", protocol, held)
			}
			_ = watch.Body.Close()
			synctest.Wait()
			if watches := usersHold(s); watches != 0 {
				t.Errorf("%s: %d bytes are held in the end", protocol, watches)
			}
		})
	}
}
