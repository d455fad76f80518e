package main

import (
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// streamWindow returns the number of bytes of one answer that upstream may send before the proxy
// has read them. limit is the garbage collector's, 0 for none. The proxy holds up to this many
// bytes for each client that reads a forwarded answer slowly. Go's default is 4 MiB.
func streamWindow(limit int64) int {
	const share, least, most = 512, 256 << 10, 1 << 20
	if limit == 0 {
		return most
	}
	return int(min(most, max(least, limit/share)))
}

// transportFor returns client-go's transport with a bound for unread answers.
func transportFor(rc *rest.Config, window int) (http.RoundTripper, error) {
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return nil, fmt.Errorf("upstream transport: %w", err)
	}
	boundStreams(transport, window)
	return transport, nil
}

// boundStreams sets the window of HTTP/2 streams. It has no effect on open connections, and
// client-go shares a transport among equal configurations. So the first use of a configuration must
// be by transportFor.
func boundStreams(transport http.RoundTripper, window int) {
	for transport != http.DefaultTransport { // used only without TLS, and so without HTTP/2
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
