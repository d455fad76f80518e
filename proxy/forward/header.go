package forward

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// This file copies and changes the headers of forwarded requests and their responses.

// addForwardedFor appends the client's address, because upstream's audit log and its webhooks would
// otherwise contain only the proxy's address.
func addForwardedFor(h http.Header, c exchange.Conn) {
	if c == nil {
		return
	}
	if client, ok := c.RemoteAddr().(*net.TCPAddr); ok { // not a Unix socket
		const name = "X-Forwarded-For"
		h.Set(name, strings.Join(append(h.Values(name), client.IP.String()), ", "))
	}
}

// dropCredentials deletes the headers that identify the sender of a request.
func dropCredentials(header http.Header) {
	header.Del("Authorization")
	for name := range header {
		if strings.HasPrefix(name, access.ImpersonatePrefix) {
			delete(header, name)
		}
	}
}

// copyHeader copies the end-to-end headers.
func copyHeader(to, from http.Header) {
	drop := slices.Clone(hopByHop)
	for _, v := range from.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			drop = append(drop, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for name, values := range from {
		if strings.HasPrefix(name, "X-Remote-") || name == "Host" || name == "Content-Length" || slices.Contains(drop, name) {
			continue
		}
		to[name] = slices.Clone(values)
	}
}
