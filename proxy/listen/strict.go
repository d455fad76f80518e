package listen

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
	"golang.org/x/net/http/httpguts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// rejectMalformed refuses some heads that fasthttp accepts. Upstream's net/http would refuse them
// or interpret them in another way.
func rejectMalformed(h *fasthttp.RequestHeader, header http.Header) *exchange.Response {
	if s := malformed(h, header); s.Code != 0 {
		return exchange.NoRequest(s)
	}
	return nil
}

func malformed(h *fasthttp.RequestHeader, header http.Header) (s metav1.Status) {
	raw := h.RawHeaders()
	switch {
	case !slices.Contains([]string{"HTTP/1.0", "HTTP/1.1"}, string(h.Protocol())):
		return exchange.Failure(
			http.StatusHTTPVersionNotSupported, "", "unsupported protocol version",
		)
	case bytes.Count(raw, []byte("\n")) != bytes.Count(raw, []byte("\r\n")),
		bytes.Contains(raw, []byte("\n ")), bytes.Contains(raw, []byte("\n\t")):
		// With other line ends, AllInOrder would lose headers. It also cannot read folded headers
		// twice.
		return exchange.BadRequest("header lines must end in CR LF and must not be folded")
	}
	for name, values := range header {
		for _, value := range values {
			switch {
			case !httpguts.ValidHeaderFieldName(name), !httpguts.ValidHeaderFieldValue(value):
				return exchange.BadRequest("malformed header")
			case name == "Host" && !httpguts.ValidHostHeader(value):
				return exchange.BadRequest("malformed Host header")
			case name == "Transfer-Encoding" && !strings.EqualFold(value, "chunked"):
				return exchange.Failure(
					http.StatusNotImplemented, "", "unsupported transfer encoding",
				)
			case name == "Expect" && !strings.EqualFold(value, "100-continue"):
				return exchange.Failure(http.StatusExpectationFailed, "", "unsupported expectation")
			}
		}
	}
	return s
}

// ignoreUpgrade removes the offer of HTTP/2 without TLS (h2c), which Java's client and curl --http2
// add to each request. Neither the proxy nor upstream accepts it. Other offers may be for a pod
// behind a proxy subresource, so they remain.
func ignoreUpgrade(header http.Header) {
	if !httpguts.HeaderValuesContainsToken(header["Upgrade"], "h2c") {
		return
	}
	delete(header, "Upgrade")
	var kept []string
	for _, value := range header["Connection"] {
		for token := range strings.SplitSeq(value, ",") {
			switch token = strings.TrimSpace(token); http.CanonicalHeaderKey(token) {
			case "Upgrade":
			case "Http2-Settings":
				delete(header, "Http2-Settings")
			default:
				kept = append(kept, token)
			}
		}
	}
	delete(header, "Connection")
	if len(kept) > 0 {
		header["Connection"] = []string{strings.Join(kept, ", ")}
	}
}

// endsConnection reports whether upstream would close the connection after the request. Net/http
// treats spaces like commas here.
func endsConnection(header http.Header) bool {
	separates := func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }
	for _, value := range header.Values("Connection") {
		for _, token := range strings.FieldsFunc(value, separates) {
			if strings.EqualFold(token, "close") {
				return true
			}
		}
	}
	return false
}
