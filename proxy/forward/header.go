package forward

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// addForwardedFor appends the client's address, because upstream's audit log and its webhooks would
// otherwise contain only the proxy's address.
func addForwardedFor(h http.Header, c exchange.Conn) {
	if c == nil {
		return
	}
	if client, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		const name = "X-Forwarded-For"
		h.Set(name, strings.Join(append(h.Values(name), client.IP.String()), ", "))
	}
}

func dropCredentials(header http.Header) {
	header.Del("Authorization")
	for name := range header {
		if strings.HasPrefix(name, access.ImpersonatePrefix) {
			delete(header, name)
		}
	}
}

// hopByHop lists the headers that belong to one connection (RFC 9110, 7.6.1). Host and
// Content-Length are fields of their own in net/http.
var hopByHop = []string{
	"Connection", "Content-Length", "Host", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// namedMax limits the headers that a Connection header declares hop-by-hop.
const namedMax = 64

// copyHeader copies the end-to-end headers. It drops X-Remote headers, because an apiserver would
// read the user's name from them.
func copyHeader(to, from http.Header) error {
	drop := make(map[string]bool, 2*len(hopByHop))
	for _, name := range hopByHop {
		drop[name] = true
	}
	for _, v := range from.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			drop[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
			if len(drop) > len(hopByHop)+namedMax {
				return fmt.Errorf("the Connection header names more than %d headers", namedMax)
			}
		}
	}
	for name, values := range from {
		if !drop[name] && !strings.HasPrefix(name, "X-Remote-") {
			to[name] = slices.Clone(values)
		}
	}
	return nil
}

// HeaderMax limits the headers of a response, in bytes of memory. A pod behind a proxy subresource
// could otherwise fill the memory of the proxy: Go's limit is 10 MiB.
const HeaderMax = 64 << 10

// responseTo returns a response with upstream's status and headers. It fails if they are too long.
func responseTo(in *http.Response) (*exchange.Response, error) {
	if exchange.HeaderSize(in.Header) > HeaderMax {
		return nil, errors.New("long header")
	}
	resp := exchange.NewResponse(in.StatusCode, exchange.FromUpstream)
	return resp, copyHeader(resp.Header, in.Header)
}

// LongHeader returns the response to a request for whose headers of a response there is no room.
func LongHeader() *exchange.Response {
	return exchange.StatusResponse(longHeader())
}

func longHeader() metav1.Status {
	return exchange.BadGateway("the header of the response is too long, so it was dropped; " +
		"the request has been executed")
}

// leaves reports whether a decoded path has segments that a server may resolve to a path above it.
func leaves(path string) bool {
	separates := func(c rune) bool { return c == '/' || c == '\\' }
	for segment := range strings.FieldsFuncSeq(path, separates) {
		if segment, _, _ = strings.Cut(segment, ";"); segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
