package main

import (
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// streamWindow bounds what upstream may send of one answer before the proxy has read it, in bytes.
// A client that reads a forwarded answer slowly makes the proxy hold that much. Go's own is 4 MiB.
const streamWindow = 1 << 20

// transportFor is client-go's transport with a bound for unread answers.
func transportFor(rc *rest.Config) (http.RoundTripper, error) {
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return nil, fmt.Errorf("upstream transport: %w", err)
	}
	boundStreams(transport)
	return transport, nil
}

// boundStreams sets the window of HTTP/2 streams. Connections read the setting when they are
// opened, and client-go shares a transport among equal configurations: so the first use of a
// configuration must come through transportFor.
func boundStreams(transport http.RoundTripper) {
	for transport != http.DefaultTransport { // used without TLS only, so without HTTP/2
		switch t := transport.(type) {
		case *http.Transport:
			if t.HTTP2 == nil {
				t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: streamWindow}
			}
			return
		case utilnet.RoundTripperWrapper:
			transport = t.WrappedRoundTripper()
		default:
			return
		}
	}
}
