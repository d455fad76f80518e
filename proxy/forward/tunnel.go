package forward

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// tunnel joins the client with upstream after both have left HTTP, for exec, attach and
// port-forward (SPDY or WebSocket), and for watches over WebSocket. The tunnel ends with ctx.
func (x *roundTrip) tunnel(ctx context.Context, in *http.Response) *exchange.Response {
	upstream, ok := in.Body.(io.ReadWriteCloser) // not if the response names no protocol
	resp, err := responseTo(in)
	if err != nil {
		_ = in.Body.Close()
		x.finish()
		return LongHeader()
	}
	if !ok || !x.upgrade() {
		_ = in.Body.Close()
		x.finish()
		return exchange.StatusResponse(exchange.BadGateway(
			"the upstream apiserver upgraded the connection to no protocol, " +
				"or before the request ended"))
	}
	resp.Header.Set("Connection", "Upgrade")
	resp.Header.Set("Upgrade", in.Header.Get("Upgrade"))
	resp.Body = &tunnelled{x, ctx, upstream}
	return resp
}

type tunnelled struct {
	x        *roundTrip
	ctx      context.Context //nolint:containedctx // it is the request's
	upstream io.ReadWriteCloser
}

// Join implements Tunnel.
func (t *tunnelled) Join(client exchange.TunnelClient) {
	defer t.x.end(closed)
	// Net/http does not end an upgraded connection with its request. The client gets a moment for
	// what it has not read yet.
	defer context.AfterFunc(t.ctx, func() {
		_ = t.upstream.Close()
		client.LimitWrites(time.Now().Add(time.Second))
	})()
	join(client, t.upstream)
}

// Abandon implements Tunnel.
func (t *tunnelled) Abandon() {
	t.x.end(closed)
	_ = t.upstream.Close()
}

// join copies both ways until both sides have ended. It forwards a half-close, so that the last
// bytes of the other side still arrive.
func join(client net.Conn, upstream io.ReadWriteCloser) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(upstream, client)
		if half, ok := upstream.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
			return
		}
		_ = upstream.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(client, upstream)
		_ = client.Close()
		_ = upstream.Close()
	})
	both.Wait()
}
