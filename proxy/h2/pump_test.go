package h2

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/filter"
)

// watching answers GET with a watch of c, and all other requests with text.
func watching(t *testing.T, c *watchcache.Cache, lifetime time.Duration, text string) handler {
	return selecting(t, c, cachetest.Filter(t, c), lifetime, text)
}

func selecting(t *testing.T, c *watchcache.Cache, f *filter.Filter, lifetime time.Duration, text string) handler {
	return func(_ context.Context, req *exchange.Request) *exchange.Response {
		if req.Method != http.MethodGet {
			return says(text)
		}
		cursor, err := c.WatchAfter(f, cachetest.Snapshot(t, c))
		if err != nil {
			panic(err)
		}
		resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		resp.Stream = watch.New(watch.Params{
			Cache: c, Cursor: cursor, Filter: f, Draining: context.Background(), Done: func() {}, Lifetime: lifetime,
			Form: wire.NewForm(wire.Choice{}, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}),
		})
		return resp
	}
}

// A watch with an expensive filter receives its events even while the pump is blocked.
func TestExpensiveFilterIsNotThePumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.Roomy(t)
		selector, err := labels.Parse(strings.TrimSuffix(strings.Repeat("!k,", 40), ","))
		if err != nil {
			t.Fatal(err)
		}
		f, err := filter.New(c.Resource(), "a", selector, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(selecting(t, c, f, time.Hour, ""), options())
		s.pump.mu.most = -1 // the pump starts no goroutines
		p := dial(t, s)
		p.request(1, true, "GET")
		p.until("head", headers(1))
		cachetest.Apply(t, c, cachetest.Sized(t, 2, 10))
		p.until("event", func(f http2.Frame) bool {
			return data(1)(f) && strings.Contains(string(f.(*http2.DataFrame).Data()), `"resourceVersion":"2"`)
		})
	})
}

func headers(id uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok && f.Header().StreamID == id }
}

// widening gives a window as soon as a write to an eager stream has found no window.
type widening struct {
	s    *stream
	wide bool
}

// Write implements io.Writer.
func (w *widening) Write(p []byte) (int, error) {
	n, err := (*eager)(w.s).Write(p)
	if !w.wide {
		w.wide = true
		return n, w.s.c.windowUpdate(&http2.WindowUpdateFrame{FrameHeader: http2.FrameHeader{StreamID: w.s.id}, Increment: 1 << 20})
	}
	return n, err
}

// A window that arrives while a pump works on the watch is not lost.
func TestWindowWhileThePumpWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.Roomy(t)
		watch := watching(t, c, time.Hour, "")
		streams := make(chan *stream, 1)
		s := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
			streams <- req.Client.(*stream)
			return watch(ctx, req)
		}, options())
		p := dial(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		p.request(1, true, "GET")
		p.until("head", headers(1))
		st := <-streams
		synctest.Wait() // until the first turn is over
		st.c.mu.Lock()
		st.out.To = &widening{s: st}
		st.c.mu.Unlock()
		cachetest.Apply(t, c, cachetest.Sized(t, 10, 1<<10))
		p.until("the rest of the event", func(f http2.Frame) bool {
			return data(1)(f) && strings.HasSuffix(string(f.(*http2.DataFrame).Data()), "}\n")
		})
	})
}

// When a connection with a full buffer ends, its watches end.
func TestFullBufferEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.Roomy(t)
		o := options()
		s := newServer(watching(t, c, time.Hour, strings.Repeat("x", 32<<10)), o)
		p := dial(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowMax})
		p.sent(p.WriteWindowUpdate(0, windowMax-windowInitial))
		p.request(1, true, "GET")
		p.until("head", headers(1))
		for i := range uint32(100) { // from now on the client reads nothing
			p.request(2*i+3, true, "PUT")
		}
		synctest.Wait()
		cachetest.Apply(t, c, cachetest.Sized(t, 10, 1<<10))
		<-p.served
	})
}

// quietStream writes nothing.
type quietStream struct{}

// Run implements exchange.Stream.
func (quietStream) Run(ctx context.Context, _ *exchange.ChunkWriter) { <-ctx.Done() }

// Abandon implements exchange.Stream.
func (quietStream) Abandon() {}

// Reason implements exchange.Stream.
func (quietStream) Reason() string { return "" }

// A client learns at once that its watch has begun, although there is no event.
func TestHeadOfAQuietStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.Roomy(t)
		for name, h := range map[string]handler{
			"pump": watching(t, c, time.Hour, ""),
			"its own goroutine": func(context.Context, *exchange.Request) *exchange.Response {
				resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
				resp.Stream = quietStream{}
				return resp
			},
		} {
			p := dial(t, newServer(h, options()))
			began := time.Now()
			p.request(1, true, "GET")
			if p.until("head", headers(1)); time.Since(began) > 0 {
				t.Errorf("%s: after %v", name, time.Since(began))
			}
			p.Close()
			<-p.served
		}
	})
}

// If a client gives no window within the stall time, the watch is reset, even outside the pump.
func TestStalledWatchIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.Roomy(t)
		o := options()
		o.Stall = time.Second
		p := dial(t, newServer(watching(t, c, time.Hour, ""), o))
		p.request(1, true, "GET")
		p.until("head", headers(1))
		cachetest.Apply(t, c, cachetest.Sized(t, 10, 1<<20)) // larger than a piece
		p.until("reset", isReset(1))
	})
}

// A connection that drains still begins with SETTINGS, and ends after its last response.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := make(chan *stream, 1)
		s := newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
			streams <- req.Client.(*stream)
			time.Sleep(2 * drainGrace)
			return says("hello")
		}, options())
		draining, drain := context.WithCancel(context.Background())
		drain()
		s.Draining = draining
		p := dial(t, s)
		if f, err := p.ReadFrame(); err != nil || f.Header().Type != http2.FrameSettings {
			t.Errorf("the first frame: %v %v", f, err)
		}
		p.request(1, true, "GET")
		<-streams
		p.answersDrain()
		p.until("end", ended(1))
		<-p.served
	})
}

// If new streams begin to be ignored while a request is read, GOAWAY names the request's stream only
// if it is answered.
func TestRequestAtTheEndOfADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began, cut, slow atomic.Bool
		s := newServer(func(ctx context.Context, _ *exchange.Request) *exchange.Response {
			began.Store(true)
			select {
			case <-ctx.Done():
				cut.Store(true)
			case <-time.After(time.Second):
			}
			return says("hello")
		}, options())
		s.Options = func() Options {
			if slow.CompareAndSwap(true, false) { // the next call is that of the request's stream
				time.Sleep(2 * drainGrace)
			}
			return options()
		}
		draining, drain := context.WithCancel(context.Background())
		s.Draining = draining
		p := dial(t, s)
		drain()
		p.until("first step", isGoaway)
		slow.Store(true)
		p.request(1, true, "GET")
		named := p.until("second step", isGoaway).(*http2.GoAwayFrame).LastStreamID == 1
		<-p.served
		if slow.Load() || named != began.Load() || cut.Load() {
			t.Errorf("named: %t, begun: %t, cut: %t", named, began.Load(), cut.Load())
		}
	})
}
