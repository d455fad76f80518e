package h2

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// A client may change the size of its header table at any time.
func TestTableSizeChanges(t *testing.T) {
	scene{}.run(t, func(s *script) {
		s.play("=> settings ack")
		for i, size := range []uint32{4096, 0, 0, 100, 64 << 10, 33, 4096, 1 << 31} {
			s.play(fmt.Sprintf(`
				2*set:table=0,table=%d => ack ack
				GET@%d. => %[2]d:200+5.
				GET@%[3]d. => %[3]d:200+5.`, size, 4*i+1, 4*i+3))
		}
	})
}

// A stream that has ended makes room for another stream immediately.
func TestEndedStreamMakesRoom(t *testing.T) {
	scene{}.run(t, func(s *script) {
		s.play(fmt.Sprintf("%d*POST. => settings ack", streamsMax-1))
		for range 500 {
			var one *call
			s.do(func() {
				s.requestLocked("GET.")
				one = s.mu.calls[s.mu.last]
			})
			if err := s.await(one.over); err != nil || one.reset != nil {
				t.Fatalf("stream %d is refused, %v", one.id, err)
			}
		}
	})
}

// If a client resets its streams immediately, the number of handlers stays bounded, and other
// connections receive responses.
func TestRapidReset(t *testing.T) {
	scene{}.run(t, func(s *script) {
		const more = 500
		s.play(fmt.Sprintf("%d*STUCK.;rst", streamsMax+more))
		if n := strings.Count(s.read(), "!REFUSED_STREAM"); n != more {
			t.Errorf("%d streams are refused, want %d", n, more)
		}
		other := scene{}.open(t, s.server)
		other.play("GET@1. => settings ack 1:200+5.")
		other.end()
	})
}

// A client that reads one byte a second is disconnected after the stall time, even if it sends frames all
// the time. So is a stream whose window is widened by single bytes: it gets the stall time once for each
// piece.
func TestTricklingClients(t *testing.T) {
	scene{unread: 1}.run(t, func(s *script) {
		s.play("read:0 GET/65535@1.")
		s.play(fmt.Sprintf("%d*read:1;ping;wait:1s over", 3*limits().Stall/time.Second))
	})
	scene{limits: within(200 * time.Millisecond).limits, settings: window(0).settings}.run(t, func(s *script) {
		s.play(`
			GET/65536@1. => settings ack 1:200
			20*win@1:1;wait:20ms => *!CANCEL`)
	})
}

// written counts responses that were written, and their bytes. Their requests count until then.
type written struct {
	handler
	n, bytes *atomic.Int64
}

// Handle implements Handler.
func (w written) Handle(ctx context.Context, req *exchange.Request) *exchange.Response {
	resp := w.handler.Handle(ctx, req)
	req.Memory, resp.Release = fair.NewPool(1, false).Holding(""), w
	return resp
}

// Written implements exchange.Release.
func (w written) Written(bytes int64) {
	w.n.Add(1)
	w.bytes.Add(bytes)
}

// When a watch ends, it is no longer open, and what its request holds is given back once.
func TestEndedWatchIsGivenBack(t *testing.T) {
	for reason, end := range map[string]string{
		"client":  "rst@1 =>",
		"timeout": "wait:2m => *",
	} {
		t.Run(reason, func(t *testing.T) {
			scene{}.run(t, func(s *script) {
				var n, bytes atomic.Int64
				registry := prometheus.NewRegistry()
				s.server.Metrics = metrics.New(registry)
				s.server.Handler = written{watching(t, s.cache, time.Minute), &n, &bytes}
				s.play(`
					WATCH@1. => settings ack 1:200
					event:10 => 1:+170`)
				if open := gathered(t, registry, "watchproxy_watches"); open != 1 || n.Load() != 0 {
					t.Errorf("%v watches are open, %d were given back", open, n.Load())
				}
				s.play(end)
				if open := gathered(t, registry, "watchproxy_watches"); open != 0 {
					t.Errorf("%v watches are open after the end", open)
				}
				if ends := gathered(t, registry, "watchproxy_watch_ends_total"); ends != 1 {
					t.Errorf("%v ends are counted", ends)
				}
				if n.Load() != 1 || bytes.Load() != 170 {
					t.Errorf("given back %d times, after %d bytes", n.Load(), bytes.Load())
				}
			})
		})
	}
}

// gathered returns the sum of a metric's counts.
func gathered(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// Responses to a client that does not read need only a little more memory than the buffer.
func TestUnreadAnswersAreBounded(t *testing.T) {
	for method, size := range map[string]int{"GET": 32 << 10, "HEAD": 10} {
		t.Run(method, func(t *testing.T) {
			scene{settings: window(windowMax).settings}.run(t, func(s *script) {
				var ended, bytes atomic.Int64
				s.server.Handler = written{s.server.Handler.(handler), &ended, &bytes}
				s.play(fmt.Sprintf("win:2000000000 read:0 900*%s/%d,x=y.", method, size))
				synctest.Wait()
				if n := int(ended.Load()); n == 0 || n*size > 5*bufferMax {
					t.Errorf("%d responses of %d bytes wait for the client", n, size)
				}
			})
		})
	}
}

// Long responses on a connection do not delay its watches and uploads.
func TestLongAnswersLetOthersPass(t *testing.T) {
	scene{settings: window(windowMax).settings}.run(t, func(s *script) {
		const long = 8_000_000
		s.play(fmt.Sprintf(`
			=> settings ack
			win:2000000000 read:0 2*GET/%d. WATCH@5. =>
			event:100 PUT@7,expect=100-continue wait:1s`, long))
		before, all := map[uint32]int{}, 0
		s.play("read:-1 wait:1s")
		s.do(func() {
			for _, n := range s.mu.notes {
				if _, ok := before[n.id]; !ok && (n.data > 0 || n.text == " 100") {
					before[n.id] = all
				}
				all += n.data
			}
		})
		for id := range uint32(4) {
			if n, ok := before[2*id+1]; !ok || n > long/2 {
				t.Errorf("stream %d begins after %d bytes of others", 2*id+1, n)
			}
		}
	})
}

// A watch with an expensive filter receives its events even while the pump is blocked.
func TestExpensiveFilterIsNotThePumps(t *testing.T) {
	scene{}.run(t, func(s *script) {
		selector, err := labels.Parse(strings.TrimSuffix(strings.Repeat("!k,", 40), ","))
		if err != nil {
			t.Fatal(err)
		}
		f, err := object.NewFilter(s.cache.Resource(), "a", selector, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.server.Handler = selecting(t, s.cache, f, time.Hour)
		s.server.pump.mu.most = -1 // the pump starts no goroutines
		s.play(`
			WATCH@1. => settings ack 1:200
			event:10 => 1:+170`)
	})
}

// widening gives a window as soon as a write to a pumped watch has found no window.
type widening struct {
	s    *stream
	wide bool
}

// Write implements io.Writer.
func (w *widening) Write(p []byte) (int, error) {
	n, err := w.s.out.watch.Write(p)
	if !w.wide {
		w.wide = true
		return n, w.s.c.reader.windowUpdate(&http2.WindowUpdateFrame{FrameHeader: http2.FrameHeader{StreamID: w.s.id}, Increment: 1 << 20})
	}
	return n, err
}

// A window that arrives while a pump works on the watch is not lost.
func TestWindowWhileThePumpWorks(t *testing.T) {
	window(1).run(t, func(s *script) {
		streams := make(chan *stream, 1)
		answers := s.server.Handler.(handler)
		s.server.Handler = handler(func(ctx context.Context, req *exchange.Request) *exchange.Response {
			streams <- req.Client.(*stream)
			return answers(ctx, req)
		})
		s.play("WATCH@1. => settings ack 1:200")
		st := <-streams
		s.do(func() { s.mu.calls[1].given = 1 << 20 })
		st.c.writer.mu.Lock()
		st.out.watch.out.To = &widening{s: st}
		st.c.writer.mu.Unlock()
		s.play("event:1000 => 1:+1160")
	})
}

// If new streams begin to be ignored while a request is read, GOAWAY names the request's stream only
// if it is answered.
func TestRequestAtTheEndOfADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow, began atomic.Bool
		server := newServer(func(context.Context, *exchange.Request) *exchange.Response {
			began.Store(true)
			return says("hello")
		}, limits())
		server.Limits = func() exchange.Limits {
			if slow.CompareAndSwap(true, false) { // the next call is that of the request's stream
				time.Sleep(2 * drainGrace)
			}
			return limits()
		}
		draining, drain := context.WithCancel(context.Background())
		server.Draining = draining
		s := scene{}.open(t, server)
		defer s.end()
		s.drain = drain
		s.play(`
			mute => settings ack
			drain => goaway:max:NO_ERROR ping`)
		slow.Store(true)
		s.play("GET@1. wait:1m => goaway:0:NO_ERROR eof")
		if slow.Load() || began.Load() {
			t.Errorf("the request was not read: %t, or it is answered: %t", slow.Load(), began.Load())
		}
	})
}

// Refusals that strangers do not read end, and keep nothing of their requests. However many streams have
// begun before the first refusal, only a bounded number lasts until the deadline. Strangers of one network get half of it, so that
// strangers of another network are answered.
func TestStrangersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, streams = 2, 300
		const beyond = connections*streams - strangersMax/2
		release := make(chan struct{})
		requests := make(chan weak.Pointer[exchange.Request], connections*streams+1)
		server := newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
			requests <- weak.Make(req)
			<-release
			resp := says("Unauthorized")
			resp.Status, resp.Last = 401, true
			return resp
		}, limits())
		var all []*script
		for range connections {
			s := scene{stranger: true, settings: window(0).settings}.open(t, server)
			s.play(fmt.Sprintf("%d*GET. => settings ack", streams))
			all = append(all, s)
		}
		close(release)
		resets := 0
		for _, s := range all {
			resets += strings.Count(s.read(), "!ENHANCE_YOUR_CALM")
		}
		counted := testutil.ToFloat64(server.Metrics.Refused.WithLabelValues("strangers"))
		if n := server.Strangers.Taken(); n != strangersMax/2 || counted != beyond || resets != beyond {
			t.Errorf("%d responses wait, %v were given up, %d reset; want %d and %d", n, counted, resets, strangersMax/2, beyond)
		}
		runtime.GC()
		kept := 0
		for range connections * streams {
			if (<-requests).Value() != nil {
				kept++
			}
		}
		if kept > 0 {
			t.Errorf("%d refused requests are kept", kept)
		}
		elsewhere := scene{stranger: true, remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
		all = append(all, elsewhere.open(t, server))
		all[connections].play("GET@1. => settings ack goaway:1:NO_ERROR 1:401+12. eof")
		time.Sleep(limits().Write + time.Second)
		synctest.Wait()
		if n := server.Strangers.Taken(); n != 0 {
			t.Errorf("after the deadline %d responses wait", n)
		}
		for _, s := range all {
			s.end()
		}
	})
}
