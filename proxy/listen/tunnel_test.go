package listen

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// tunnel is a tunnel whose upstream writes and ends at once, while the client's bytes are read.
type tunnel struct{ reads, writes int }

// Join implements exchange.Tunnel.
func (u tunnel) Join(client exchange.TunnelClient) {
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.ReadFull(client, make([]byte, u.reads)) })
	both.Go(func() {
		_, _ = client.Write(make([]byte, u.writes))
		_ = client.Close()
	})
	both.Wait()
}

// Abandon implements exchange.Tunnel.
func (tunnel) Abandon() {}

// Bytes that a client sends before its tunnel begins are counted until then. They are given back once,
// although two goroutines of a tunnel use the connection. The race detector notices if not. The client may
// leave bytes unread for any time, like a paused terminal.
func TestTunnels(t *testing.T) {
	for _, of := range []tunnel{{reads: unbuffered}, {writes: 10 * unbuffered}} {
		talk(t, func(req *exchange.Request) *exchange.Response {
			_, leave := context.WithCancel(context.Background())
			stop := req.Client.CancelWhenGone(leave)
			time.Sleep(time.Second)
			stop()
			resp := exchange.NewResponse(http.StatusSwitchingProtocols, exchange.FromUpstream)
			resp.Body = of
			return resp
		}, nil, 4*unbuffered, func(p *peer) {
			p.sends(strings.Replace(get, "Host", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nHost", 1) + strings.Repeat("x", of.reads))
			time.Sleep(time.Hour)
			synctest.Wait()
			if all, err := io.ReadAll(p); err != nil || len(all) < of.writes {
				t.Errorf("the client has read %d bytes, %v", len(all), err)
			}
		})
	}
}
