package h2

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

func setting(id http2.SettingID, value uint32) http2.Setting {
	return http2.Setting{ID: id, Val: value}
}

// A client may change the size of its header table at any time.
func TestTableSizeChanges(t *testing.T) {
	p := dial(t, newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
		resp := says("")
		resp.Header.Set("X-Same", strings.Repeat("s", 100))
		resp.Header.Set("X-N", req.Header.Get("X-N"))
		return resp
	}, options()))
	p.until("settings", isAck)
	for i, size := range []uint32{4096, 0, 0, 100, 64 << 10, 33, 4096, 1 << 31} {
		for range 2 {
			p.sent(p.WriteSettings(setting(http2.SettingHeaderTableSize, 0), setting(http2.SettingHeaderTableSize, size)))
		}
		p.until("settings", isAck)
		p.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(size)
		p.encoder.SetMaxDynamicTableSize(min(size, 4096))
		for j := range uint32(20) {
			id, n := uint32(i)*40+2*j+1, strconv.Itoa(i*100+int(j))
			p.request(id, true, "GET", "x-n", n, "x-long", strings.Repeat("x", int(j)*100))
			f := p.until("head", headers(id)).(*http2.MetaHeadersFrame)
			if got := f.Fields; !slices.Contains(got, hpack.HeaderField{Name: "x-n", Value: n}) ||
				!slices.Contains(got, hpack.HeaderField{Name: "x-same", Value: strings.Repeat("s", 100)}) {
				t.Fatal(size, got)
			}
		}
	}
}

// SETTINGS can make a window negative. Data continues when the window is positive again.
func TestNegativeWindow(t *testing.T) {
	p := dial(t, newServer(saying(strings.Repeat("x", 1000)), options()), setting(http2.SettingInitialWindowSize, 100))
	p.until("settings", isAck)
	p.request(1, true, "GET")
	length := func() uint32 { t.Helper(); return p.until("data", data(1)).Header().Length }
	if n := length(); n != 100 {
		t.Error(n)
	}
	p.sent(p.WriteSettings(setting(http2.SettingInitialWindowSize, 10)))
	p.sent(p.WriteWindowUpdate(1, 90)) // 0
	p.sent(p.WritePing(false, [8]byte{}))
	p.until("pong", func(f http2.Frame) bool {
		if data(1)(f) {
			t.Error("data without a window")
		}
		return pong(f)
	})
	p.sent(p.WriteWindowUpdate(1, 1))
	if n := length(); n != 1 {
		t.Error(n)
	}
	p.sent(p.WriteSettings(setting(http2.SettingInitialWindowSize, 10+1000-101)))
	if n := length(); n != 1000-101 {
		t.Error(n)
	}
	p.until("end", ended(1))
}

// If a client resets its streams immediately, the number of handlers stays bounded, and other
// connections receive responses.
func TestRapidReset(t *testing.T) {
	var running, most atomic.Int64
	goOn := make(chan struct{})
	s := newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
		if req.Method == http.MethodPost {
			now := running.Add(1)
			defer running.Add(-1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			<-goOn // the handler does not notice that its client has left
		}
		return says("hello")
	}, options())
	p, other := dial(t, s), dial(t, s)
	id := uint32(1)
	for ; id < 2*5000; id += 2 {
		p.request(id, true, "POST")
		p.sent(p.WriteRSTStream(id, http2.ErrCodeCancel))
		if id%1000 == 1 {
			other.answered(id)
		}
	}
	p.until("reset", isReset(id-2))
	if n := most.Load(); n > streamsMax {
		t.Errorf("%d handlers run at a time", n)
	}
	close(goOn)
	for ok := false; !ok; id += 2 { // the handlers need some time to end
		p.request(id, true, "GET")
		p.until("answer", func(f http2.Frame) bool { ok = ended(id)(f); return ok || isReset(id)(f) })
	}
}

// piped serves a client over a pipe. Each write to the pipe waits until the client reads it.
func piped(t *testing.T, h handler) *peer {
	t.Helper()
	client, accepted := net.Pipe()
	return greet(t, newServer(h, options()), client, known(accepted), nil)
}

// lasts reads until the connection ends, and returns the duration. It answers pings if answers is
// true.
func (p *peer) lasts(answers bool) (goaways int, d time.Duration) {
	began := time.Now()
	for {
		f, err := p.ReadFrame()
		if err != nil {
			<-p.served
			return goaways, time.Since(began)
		}
		if ping, ok := f.(*http2.PingFrame); ok && answers {
			_ = p.WritePing(true, ping.Data)
		}
		if isGoaway(f) {
			goaways++
		}
	}
}

// A connection ends if its client does not answer pings, or if it has no stream for a while. An open
// stream keeps it.
func TestConnectionLasts(t *testing.T) {
	const hour = time.Hour
	idle := options().Limits.Idle
	for name, test := range map[string]struct {
		asks, answers bool
		goaways       int
		least, most   time.Duration
	}{
		"silent":  {true, false, 0, pingAfter, pingAfter + 2*pingTimeout},
		"idle":    {false, true, 2, idle, idle + 2*drainGrace},
		"waiting": {true, true, 0, hour, hour}, // until the client leaves
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := piped(t, waiting)
				if test.asks {
					p.request(1, true, "POST")
				}
				time.AfterFunc(hour, func() { p.Close() })
				if goaways, d := p.lasts(test.answers); goaways != test.goaways || d < test.least || d > test.most {
					t.Error(goaways, d)
				}
			})
		})
	}
}

// A client that reads one byte a second is disconnected after the stall time, even if it sends
// frames all the time.
func TestByteASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := piped(t, saying(strings.Repeat("x", windowInitial)))
		p.request(1, true, "GET")
		var pings sync.WaitGroup
		pings.Go(func() {
			for p.WritePing(true, [8]byte{}) == nil {
				time.Sleep(time.Second)
			}
		})
		began := time.Now()
		for one := make([]byte, 1); ; time.Sleep(time.Second) {
			if _, err := p.Read(one); err != nil {
				break
			}
		}
		<-p.served
		pings.Wait()
		if d, stall := time.Since(began), options().Stall; d < stall || d > 3*stall {
			t.Error(d)
		}
	})
}
