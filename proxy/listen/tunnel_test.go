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

// endedAtOnce is a tunnel whose upstream ends at once, while the client's bytes are read.
type endedAtOnce struct{ read []byte }

// Join implements exchange.Tunnel.
func (e *endedAtOnce) Join(client exchange.TunnelClient) {
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.ReadFull(client, e.read) })
	both.Go(func() { _ = client.Close() })
	both.Wait()
}

// Abandon implements exchange.Tunnel.
func (*endedAtOnce) Abandon() {}

// Bytes that a client sends before its tunnel begins are counted until then. They are given back once,
// although two goroutines of a tunnel use the connection. The race detector notices if not.
func TestBytesBeforeATunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tunnel := &endedAtOnce{read: make([]byte, 8<<10)}
		client := newServer(func(req *exchange.Request) *exchange.Response {
			_, leave := context.WithCancel(t.Context())
			stop := req.Client.CancelWhenGone(leave)
			synctest.Wait()
			stop()
			resp := exchange.NewResponse(http.StatusSwitchingProtocols, exchange.FromUpstream)
			resp.Tunnel = tunnel
			return resp
		}, nil, 0).connect(t, 1<<20)
		const head = "GET /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
		if _, err := io.WriteString(client, head+strings.Repeat("x", len(tunnel.read))); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(client); err != nil {
			t.Error(err)
		}
	})
}

// written is a tunnel whose upstream writes and ends.
type written struct{ bytes []byte }

// Join implements exchange.Tunnel.
func (w written) Join(client exchange.TunnelClient) {
	_, _ = client.Write(w.bytes)
	_ = client.Close()
}

// Abandon implements exchange.Tunnel.
func (written) Abandon() {}

// The client of a tunnel may leave bytes unread for any time, like a paused terminal.
func TestUnreadTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newServer(func(*exchange.Request) *exchange.Response {
			resp := exchange.NewResponse(http.StatusSwitchingProtocols, exchange.FromUpstream)
			resp.Tunnel = written{make([]byte, 10*unbuffered)}
			return resp
		}, nil, 0).connect(t, unbuffered)
		if _, err := io.WriteString(client, "GET /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if all, err := io.ReadAll(client); err != nil || len(all) < 10*unbuffered {
			t.Errorf("the client has read %d bytes, %v", len(all), err)
		}
	})
}
