package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// The headers with which clients offer to leave HTTP/1.1.
const (
	offerH2C       = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
	offerH2CBeside = "Connection: keep-alive, upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
	offerOther     = "Connection: Upgrade\r\nUpgrade: x\r\n"
)

// The offer of HTTP/2 without TLS changes nothing: the cache answers reads, and writes are
// forwarded with their bodies. An offer beside a body is ignored. Others reach upstream, which may
// ignore them.
func TestOffersToLeaveHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		_, l := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "upstream hears %s %q %q %q %q %v", r.Method, body, r.Header["Connection"], r.Header["Upgrade"], r.Header["Http2-Settings"], err)
		}, testLimits(), nil)
		const path = " /api/v1/namespaces/a/configmaps"
		const cached, forwarded = `"uid":"u"`, `upstream hears %s "%s" [] [] [] <nil>`
		body, chunked := "Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
		for _, offer := range []string{offerH2C, offerH2CBeside, offerOther, handshake, spdy} {
			reads, posts := cached, fmt.Sprintf(forwarded, http.MethodPost, "")
			if offer == offerOther || offer == handshake || offer == spdy {
				_, name, _ := strings.Cut(offer, "Upgrade: ")
				name, _, _ = strings.Cut(name, "\r")
				reads = fmt.Sprintf(`upstream hears GET "" ["Upgrade"] ["%s"] [] <nil>`, name)
				posts = fmt.Sprintf(`upstream hears POST "" ["Upgrade"] ["%s"] [] <nil>`, name)
			}
			for _, test := range []struct{ what, head, rest, want string }{
				{"get", "GET" + path + "/c-000000?resourceVersion=0", "\r\n", reads},
				{"list", "GET" + path + "?resourceVersion=0", "\r\n", reads},
				{"post", "POST" + path, body, fmt.Sprintf(forwarded, http.MethodPost, "body")},
				{"chunked patch", "PATCH" + path + "/c-000000", chunked, fmt.Sprintf(forwarded, http.MethodPatch, "body")},
				{"post without a body", "POST" + path, "Content-Length: 0\r\n\r\n", posts},
			} {
				client := dialTLS(t, l)
				send(t, client, test.head+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+offer+test.rest)
				resp, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil {
					t.Fatalf("%s with %q: %v", test.what, offer, err)
				}
				got, err := io.ReadAll(resp.Body)
				if resp.StatusCode != http.StatusOK || err != nil || !strings.Contains(string(got), test.want) {
					t.Errorf("%s with %q: %s, %.200q, %v\nwant %s", test.what, offer, resp.Status, got, err, test.want)
				}
				client.Close()
			}
		}
	})
}
