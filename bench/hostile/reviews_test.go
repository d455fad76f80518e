package hostile

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// reviews are clients whose credentials or access only the apiserver can judge.
func reviews() []behaviour {
	row := func(name string, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "credentials: " + name, clients: 8, most: 32, rate: rate, do: do}
	}
	stranger := func(header func(i int64) http.Header) func(*attack, int) {
		return each(http1, func(_ *attack, i int64) (string, string, http.Header) { return http.MethodGet, oneRow, header(i) })
	}
	socket := func(tokens int) func(i int64) http.Header {
		return func(i int64) http.Header {
			h := upgradeToWebSocket()
			all := make([]string, tokens)
			for n := range all {
				token := fmt.Sprintf("%s-%d", made(i), n)
				all[n] = "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
			}
			h.Set("Sec-Websocket-Protocol", strings.Join(append(all, "binary.k8s.io"), ", "))
			return h
		}
	}
	return []behaviour{
		row("made-up tokens", 200, stranger(func(i int64) http.Header { return bearer(made(i)) })).refused(),
		row("made-up tokens of 60 KB", 100, stranger(func(i int64) http.Header { return bearer(made(i) + strings.Repeat("x", 60<<10)) })).refused(),
		row("made-up service accounts", 200, stranger(func(i int64) http.Header {
			claims := fmt.Sprintf(`{"iss":"https://kubernetes.default.svc","sub":"system:serviceaccount:default:%s","exp":9999999999}`, made(i))
			part := base64.RawURLEncoding.EncodeToString
			return bearer(part([]byte(`{"alg":"none"}`)) + "." + part([]byte(claims)) + "." + part([]byte("signature")))
		})).refused(),
		row("made-up tokens of WebSockets", 200, stranger(socket(1))).refused(),
		row("100 made-up tokens of a WebSocket", 100, stranger(socket(100))).refused(),
		row("1,000 groups to impersonate", 50, each(http2Protocol, func(_ *attack, i int64) (string, string, http.Header) {
			h := asAttacker("Impersonate-User", made(i))
			for n := range int64(1000) {
				h.Add("Impersonate-Group", made(n))
			}
			return http.MethodGet, oneRow, h
		})).refused(),
		row("denied namespaces", 200, gets(http2Protocol, func(i int64) string { return "/api/v1/namespaces/" + made(i) + "/configmaps/x?resourceVersion=0" })).refused(),
		row("denied names", 200, gets(http2Protocol, func(i int64) string { return deniedPodsPath + "/" + made(i) + "?resourceVersion=0" })).refused(),
	}
}

// upgradeToWebSocket is the header of a browser's handshake.
func upgradeToWebSocket() http.Header {
	return http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
}
