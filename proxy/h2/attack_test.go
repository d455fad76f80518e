package h2

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

func isGoaway(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok }

func isAck(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() }

// waiting answers a POST when its client cancels it, and all other requests immediately.
func waiting(ctx context.Context, req *exchange.Request) *exchange.Response {
	if req.Method == http.MethodPost {
		<-ctx.Done()
	}
	return says("hello")
}

func (p *peer) answered(id uint32) {
	p.t.Helper()
	p.request(id, true, "GET")
	p.until("answer", ended(id))
}

// A malformed request breaks only its own stream, although more frames of this stream are on their
// way.
func TestMalformedRequestBreaksItsStreamAlone(t *testing.T) {
	p := dial(t, newServer(waiting, options()))
	p.request(1, false, "GET", "Upper", "case")
	p.sent(p.WriteWindowUpdate(1, 1))
	p.sent(p.WriteData(1, false, []byte("x")))
	p.sent(p.WriteRSTStream(1, http2.ErrCodeCancel))
	p.answered(3)
	p.request(5, true, "POST", "content-length", "5")
	if f := p.until("reset", isReset(5)); f.(*http2.RSTStreamFrame).ErrCode != http2.ErrCodeProtocol {
		t.Error(f)
	}
}

// Frames of a stream that the client has ended break only that stream.
func TestHeadersBehindTheEnd(t *testing.T) {
	p := dial(t, newServer(waiting, options()))
	p.request(1, true, "POST")
	p.request(1, true, "POST")
	if f := p.until("reset", isReset(1)); f.(*http2.RSTStreamFrame).ErrCode != http2.ErrCodeStreamClosed {
		t.Error(f)
	}
	p.answered(3)
}

// A frame that is too large is answered with FRAME_SIZE_ERROR.
func TestLargeFrame(t *testing.T) {
	p := dial(t, newServer(waiting, options()))
	p.request(1, false, "POST")
	p.sent(p.WriteData(1, false, make([]byte, frameMax+1)))
	if f := p.until("goaway", isGoaway); f.(*http2.GoAwayFrame).ErrCode != http2.ErrCodeFrameSize {
		t.Error(f)
	}
}

// If a client overruns a stream's window, the stream is reset, and the connection's window is given
// back.
func TestOverrunWindowIsGivenBack(t *testing.T) {
	conns := make(chan *Conn, 100)
	s := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
		conns <- req.Client.(*stream).c
		return waiting(ctx, req)
	}, options())
	p := dial(t, s)
	for id := uint32(1); id < 20; id += 2 {
		p.request(id, false, "POST")
		for range windowStream/frameMax + 1 {
			p.sent(p.WriteDataPadded(id, false, make([]byte, frameMax-256), make([]byte, 255)))
		}
		p.until("reset", isReset(id))
	}
	p.sent(p.WritePing(false, [8]byte{}))
	p.until("pong", pong)
	if got := (<-conns).received.Load(); got != windowConn {
		t.Errorf("%d of %d bytes are left of the window", got, windowConn)
	}
}

// answersDrain reads the first GOAWAY and answers the PING behind it.
func (p *peer) answersDrain() {
	p.t.Helper()
	if f := p.until("first step", isGoaway); f.(*http2.GoAwayFrame).LastStreamID != windowMax {
		p.t.Error(f)
	}
	ping := p.until("ping", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	p.sent(p.WritePing(true, ping.(*http2.PingFrame).Data))
}

// A second GOAWAY does not name a later stream than the first.
func TestGoawayNamesNoLaterStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(waiting, options())
		draining, drain := context.WithCancel(context.Background())
		s.Draining = draining
		p := dial(t, s)
		p.request(1, true, "POST")
		p.until("settings", isAck)
		drain()
		p.answersDrain()
		p.until("second step", isGoaway)
		p.request(3, true, "GET") // this stream is ignored
		p.sent(p.WriteData(0xff, true, nil))
		if f := p.until("end", isGoaway); f.(*http2.GoAwayFrame).LastStreamID != 1 {
			t.Error(f)
		}
	})
}

// The time in which the proxy does not read a body does not count against the client.
func TestBodyThatIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Limits.Read = 50 * time.Millisecond
		p := dial(t, newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
			_, err := req.Body.Read(make([]byte, 1))
			time.Sleep(3 * o.Limits.Read)
			rest, err2 := io.ReadAll(req.Body)
			return says(fmt.Sprint(len(rest), err, err2))
		}, o))
		p.request(1, false, "POST")
		p.sent(p.WriteData(1, true, []byte("hello")))
		if got := p.until("answer", data(1)).(*http2.DataFrame); string(got.Data()) != "4 <nil> <nil>" {
			t.Errorf("%s", got.Data())
		}
	})
}

// A stream that has ended makes room for another stream immediately.
func TestEndedStreamMakesRoom(t *testing.T) {
	p := dial(t, newServer(waiting, options()))
	id := uint32(1)
	for ; id < 2*streamsMax-1; id += 2 {
		p.request(id, true, "POST")
	}
	for range 500 {
		p.request(id, true, "GET")
		p.until("answer", func(f http2.Frame) bool {
			if r, ok := f.(*http2.RSTStreamFrame); ok {
				t.Fatal(r)
			}
			return ended(id)(f)
		})
		id += 2
	}
}

// SETTINGS are acknowledged before they are used, because until then a client may rely on the old
// settings.
func TestSettingsAreAcknowledgedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := dial(t, newServer(saying(strings.Repeat("x", 2000)), options()), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		p.sent(p.WriteWindowUpdate(0, windowMax-windowInitial))
		p.until("settings", isAck)
		for id := uint32(1); id < 200; id += 2 {
			p.request(id, true, "GET")
			p.until("head", headers(id))
		}
		for i := range uint32(1000) {
			p.sent(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i + 1}))
			if f, err := p.ReadFrame(); err != nil || !isAck(f) {
				t.Fatal(i, f, err)
			}
			for range 100 {
				if f, err := p.ReadFrame(); err != nil || f.Header().Type != http2.FrameData {
					t.Fatal(i, f, err)
				}
			}
		}
	})
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// Long responses on a connection do not delay its watches and uploads.
func TestLongAnswersLetOthersPass(t *testing.T) {
	c, _ := cachetest.Roomy(t)
	watch := watching(t, c, time.Hour, "")
	s := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
		switch req.Method {
		case http.MethodPut:
			resp := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			resp.Reader, resp.Length, resp.Streaming = endless{}, -1, true
			return resp
		case http.MethodPost:
			_, err := io.ReadAll(req.Body)
			return says(fmt.Sprint(err))
		}
		return watch(ctx, req)
	}, options())
	p := dial(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowMax})
	p.sent(p.WriteWindowUpdate(0, windowMax-windowInitial))
	for id := uint32(1); id < 9; id += 2 {
		p.request(id, true, "PUT")
	}
	within := func(what string, wanted func(http2.Frame) bool) {
		t.Helper()
		read := 0
		p.until(what, func(f http2.Frame) bool {
			if read += int(f.Header().Length); read > 64<<20 {
				t.Fatal("no ", what)
			}
			return wanted(f)
		})
	}
	within("data", data(7))
	p.request(11, true, "GET")
	within("head", headers(11))
	cachetest.Apply(t, c, cachetest.Sized(t, 10, 1<<10))
	within("event", data(11))
	for id := uint32(13); id < 100; id += 2 {
		p.request(id, false, "POST", "expect", "100-continue")
		within("100", headers(id))
		p.sent(p.WriteData(id, true, []byte("x")))
		within("answer", ended(id))
	}
}

// A client that widens a window by single bytes gets the stall time once for each piece.
func TestTricklingWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Limits.Write = 200 * time.Millisecond
		p := dial(t, newServer(saying(strings.Repeat("x", 64<<10)), o), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		p.request(1, true, "GET")
		var over atomic.Bool
		var trickling sync.WaitGroup
		trickling.Go(func() {
			for !over.Load() && p.WriteWindowUpdate(1, 1) == nil {
				time.Sleep(20 * time.Millisecond)
			}
		})
		p.until("reset", isReset(1))
		over.Store(true)
		trickling.Wait()
	})
}
