package proxy

import (
	"io"
	"net"
	"net/http"
	"sync"
)

// tunnel joins the client's connection with upstream's after both left HTTP, as
// exec, attach and port-forward do (SPDY or WebSocket).
func (x *exchange) tunnel(in *http.Response) *response {
	upstream, ok := in.Body.(io.ReadWriteCloser)
	if !ok {
		panic("BUG: net/http gave an upgraded response without a writable body")
	}
	resp := newResponse(in.StatusCode, fromUpstream)
	copyHeader(resp.header, in.Header)
	resp.header.Set("Connection", "Upgrade")
	resp.header.Set("Upgrade", in.Header.Get("Upgrade"))
	resp.abandon = func() {
		x.cancel()
		_ = upstream.Close()
	}
	resp.tunnel = func(client net.Conn, buffered io.Reader) {
		defer x.cancel()
		join(client, buffered, upstream)
	}
	// From here on the tunnel itself reads the client.
	x.mu.Lock()
	x.finished = true
	stop := x.stopWatch
	x.mu.Unlock()
	stop()
	return resp
}

// join copies both ways until both sides are done. A side that ends its stream
// is passed on as such, so that the other's last words still arrive.
func join(client net.Conn, fromClient io.Reader, upstream io.ReadWriteCloser) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(upstream, fromClient)
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
