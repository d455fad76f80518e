package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// streamWindow returns how many bytes of a response upstream may send before the proxy reads them.
// limit is the garbage collector's limit, or 0. For each client that reads a forwarded response
// slowly, the proxy buffers up to this number of bytes. Go's default is 4 MiB.
func streamWindow(limit int64) int {
	const share, least, most = 4096, 64 << 10, 1 << 20
	if limit == 0 {
		return most
	}
	return int(min(most, max(least, limit/share)))
}

// transportFor returns client-go's transport with counts and a limit for unread responses. It reads
// a token's file again after a refusal; client-go's own keeps the token for up to a minute.
func transportFor(rc *rest.Config, window int, metrics *client.Metrics) (http.RoundTripper, error) {
	if file := rc.BearerTokenFile; file != "" {
		tokens := transport.NewCachedFileTokenSource(file)
		if _, err := tokens.Token(); err == nil { // else client-go takes BearerToken, or fails
			rc = rest.CopyConfig(rc)
			rc.BearerToken, rc.BearerTokenFile = "", ""
			rc.Wrap(transport.ResettableTokenSourceWrapTransport(tokens))
		}
	}
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return nil, fmt.Errorf("upstream transport: %w", err)
	}
	boundStreams(transport, window)
	return metrics.Measure(transport), nil
}

// idleTime is how long an unused connection to upstream stays open. Kube-apiserver closes it after
// 90 s. A write that is just being sent then would fail.
const idleTime = 60 * time.Second

// idleConnections limits the unused HTTP/1.1 connections to a server, for each kind of credentials
// (see package forward). Beyond client-go's 25, each concurrent request would open one.
const idleConnections = 100

// boundStreams sets the window of HTTP/2 streams, idleTime, idleConnections and, over HTTP/1.1, the
// limit of headers. Over HTTP/2, longer headers would end the connection of other requests: Go's 10
// MiB stay, and package forward drops such headers. Open connections do not change, and client-go
// shares a transport among equal configurations, so transportFor must be the first to use one.
func boundStreams(transport http.RoundTripper, window int) {
	for transport != http.DefaultTransport { // which is only used without TLS, so without HTTP/2
		switch t := transport.(type) {
		case *http.Transport:
			if t.HTTP2 == nil {
				t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window}
				t.IdleConnTimeout, t.MaxIdleConnsPerHost = idleTime, idleConnections
				c := t.TLSClientConfig
				if c != nil && slices.Equal(c.NextProtos, []string{"http/1.1"}) {
					t.MaxResponseHeaderBytes = forward.HeaderMax
				}
			}
			return
		case utilnet.RoundTripperWrapper:
			transport = t.WrappedRoundTripper()
		default:
			return
		}
	}
}
