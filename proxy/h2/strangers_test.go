package h2

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// refusing answers a POST when its client cancels it, and refuses all other requests.
func refusing(refused *atomic.Int64) handler {
	return func(ctx context.Context, req *exchange.Request) *exchange.Response {
		if req.Method == http.MethodPost {
			return waiting(ctx, req)
		}
		refused.Add(1)
		resp := says("Unauthorized")
		resp.Status, resp.Close = http.StatusUnauthorized, true
		return resp
	}
}

// The first refusal of a stranger is its connection's last: the server answers the streams that it
// had taken before, and no others.
func TestStrangersLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		p := dialStranger(t, newServer(refusing(&refused), options()))
		p.request(1, true, "POST") // may be a known user's, on a shared connection
		p.request(3, true, "GET")
		if f := p.until("goaway", isGoaway).(*http2.GoAwayFrame); f.LastStreamID != 3 {
			t.Error(f)
		}
		p.until("refusal", ended(3))
		for id := uint32(5); id < 3+2*wastedMax; id += 2 {
			p.request(id, true, "GET")
		}
		synctest.Wait()
		p.sent(p.WriteRSTStream(1, http2.ErrCodeCancel))
		if goaways, _ := p.lasts(true); goaways != 0 {
			t.Errorf("%d more GOAWAYs", goaways)
		}
		if n := refused.Load(); n != 1 {
			t.Errorf("%d requests were answered, want only the first", n)
		}
	})
}

// A stranger's header blocks cost time even if they are broken, or come after the last stream.
func TestStrangersWaste(t *testing.T) {
	for name, waste := range map[string]func(p *peer, id uint32){
		"broken":  func(p *peer, id uint32) { p.request(id, true, "") },
		"ignored": func(p *peer, id uint32) { p.request(id, true, "GET") },
		"canceled": func(p *peer, id uint32) {
			p.request(id, true, "POST")
			p.sent(p.WriteRSTStream(id, http2.ErrCodeCancel))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refused atomic.Int64
				p := dialStranger(t, newServer(refusing(&refused), options()))
				id := uint32(3)
				if p.request(1, true, "POST"); name == "ignored" {
					p.request(3, true, "GET")
					p.until("refusal", ended(3))
					id = 5
				}
				for range wastedMax + 1 {
					waste(p, id)
					id += 2
				}
				p.until("end", func(f http2.Frame) bool {
					g, ok := f.(*http2.GoAwayFrame)
					return ok && g.ErrCode == http2.ErrCodeEnhanceYourCalm
				})
				<-p.served
			})
		})
	}
}

// A 503 or 429 does not end a stranger's connection, but many do.
func TestStrangersSparedRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := dialStranger(t, newServer(func(context.Context, *exchange.Request) *exchange.Response {
			resp := says("later")
			resp.Status = http.StatusServiceUnavailable
			return resp
		}, options()))
		for id := uint32(1); id < 2*wastedMax-1; id += 2 {
			p.answered(id)
		}
		p.request(2*wastedMax-1, true, "GET")
		if f := p.until("goaway", isGoaway).(*http2.GoAwayFrame); f.LastStreamID != 2*wastedMax-1 {
			t.Error(f)
		}
		<-p.served
	})
}

// A header that is too long is refused like a request.
func TestStrangersLongHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Limits.HeaderBytes = 1 << 10
		p := dialStranger(t, newServer(waiting, o))
		long := strings.Repeat("x", o.Limits.HeaderBytes/2)
		p.request(1, true, "GET", "a", long, "b", long)
		if f := p.until("goaway", isGoaway).(*http2.GoAwayFrame); f.LastStreamID != 1 {
			t.Error(f)
		}
		p.until("refusal", ended(1))
		<-p.served
	})
}

// A known user's connection takes the streams that are on their way when one is refused: the user's
// token may have expired, or a balancer may share the connection among users.
func TestKnownUsersStreamsOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		p := dial(t, newServer(refusing(&refused), options()))
		p.request(1, true, "GET")
		if f := p.until("goaway", isGoaway).(*http2.GoAwayFrame); f.LastStreamID != windowMax {
			t.Error(f)
		}
		p.until("refusal", ended(1))
		p.request(3, true, "GET")
		p.until("answer to a stream on its way", ended(3))
	})
}

// Refusals that strangers do not read end. However many streams have begun before the first refusal,
// only a bounded number lasts until the deadline. Strangers of one network get half of it, so that
// strangers of another network are answered.
func TestStrangersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, streams = 2, 300
		const beyond = connections*streams - strangersMax/2
		var refused atomic.Int64
		reviewed := make(chan struct{})
		s := newServer(func(ctx context.Context, req *exchange.Request) *exchange.Response {
			<-reviewed
			return refusing(&refused)(ctx, req)
		}, options())
		var resets atomic.Int64
		for range connections {
			p := dialStranger(t, s, setting(http2.SettingInitialWindowSize, 0))
			for i := range uint32(streams) {
				p.request(2*i+1, true, "GET")
			}
			go func() {
				for {
					f, err := p.ReadFrame()
					if err != nil {
						return
					}
					if _, ok := f.(*http2.RSTStreamFrame); ok {
						resets.Add(1)
					}
				}
			}()
		}
		synctest.Wait()
		close(reviewed)
		synctest.Wait()
		counted := testutil.ToFloat64(s.Metrics.Refused.WithLabelValues("strangers"))
		if n := s.Strangers.Taken(); n != strangersMax/2 || counted != beyond || resets.Load() != beyond {
			t.Errorf("%d responses wait, %v were given up, %d reset; want %d and %d",
				n, counted, resets.Load(), strangersMax/2, beyond)
		}
		client, accepted := conntest.Pipe(unread)
		accepted.Remote = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}
		other := greet(t, s, client, conn.New(accepted), nil)
		other.request(1, true, "GET")
		other.until("refusal of a client in another network", ended(1))
		time.Sleep(options().Limits.Write + time.Second)
		synctest.Wait()
		if n := s.Strangers.Taken(); n != 0 {
			t.Errorf("after the deadline %d responses wait", n)
		}
	})
}
