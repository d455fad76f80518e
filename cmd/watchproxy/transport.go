package main

import (
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// streamWindow bounds what upstream may send of one answer before the proxy has read it, in bytes,
// where the garbage collector keeps to a limit, or to none if that is 0. A client that reads a
// forwarded answer slowly makes the proxy hold that much. Go's own is 4 MiB.
func streamWindow(limit int64) int {
	const share, least, most = 512, 256 << 10, 1 << 20
	if limit == 0 {
		return most
	}
	return int(min(most, max(least, limit/share)))
}

// transportFor is client-go's transport with a bound for unread answers.
func transportFor(rc *rest.Config, window int) (http.RoundTripper, error) {
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return nil, fmt.Errorf("upstream transport: %w", err)
	}
	boundStreams(transport, window)
	return transport, nil
}

// boundStreams sets the window of HTTP/2 streams. Connections read the setting when they are
// opened, and client-go shares a transport among equal configurations: so the first use of a
// configuration must come through transportFor.
func boundStreams(transport http.RoundTripper, window int) {
	for transport != http.DefaultTransport { // used without TLS only, so without HTTP/2
		switch t := transport.(type) {
		case *http.Transport:
			if t.HTTP2 == nil {
				t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window}
			}
			return
		case utilnet.RoundTripperWrapper:
			transport = t.WrappedRoundTripper()
		default:
			return
		}
	}
}
