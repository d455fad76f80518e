package access

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
)

// webSocket returns the header of a browser's handshake. A browser can send a token only as the
// name of a subprotocol.
func webSocket(token string, subprotocols ...string) http.Header {
	if token != "" {
		bearer := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
		subprotocols = append([]string{bearer}, subprotocols...)
	}
	return http.Header{
		"Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
		"Sec-Websocket-Protocol": {strings.Join(subprotocols, ", ")},
	}
}

// A WebSocket uses the token in its handshake, both for exec at the kubelet and for a watch.
func TestWebSocketTokens(t *testing.T) {
	w := sharedWorld(t)
	f := openFront(t)
	const pod = "websocket"
	startKubelet(t, w, pod)
	const (
		pods  = "/api/v1/namespaces/" + teamA + "/pods"
		exec  = pods + "/" + pod + "/exec?command=x&stdin=1"
		watch = pods + "?watch=1&timeoutSeconds=1&resourceVersion=0"
	)
	for name, test := range map[string]struct {
		caller *caller
		token  string
		exec   int
		watch  int
	}{
		"token":                    {&caller{}, tokenOf("reader"), http.StatusSwitchingProtocols, http.StatusSwitchingProtocols},
		"service account":          {&caller{}, w.callers["robot"].token, http.StatusSwitchingProtocols, http.StatusSwitchingProtocols},
		"no rights":                {&caller{}, tokenOf("nobody"), forbidden, forbidden},
		"garbage":                  {&caller{}, "garbage", unknown, unknown},
		"nobody":                   {&caller{}, "", forbidden, forbidden},
		"as somebody else":         {w.callers["token as reader"].as(impersonating("reader")), "", http.StatusSwitchingProtocols, http.StatusSwitchingProtocols},
		"certificate":              {w.callers["certificate"], "", http.StatusSwitchingProtocols, http.StatusSwitchingProtocols},
		"certificate and a token":  {w.callers["certificate"], tokenOf("nobody"), http.StatusSwitchingProtocols, http.StatusBadRequest},
		"two tokens, header first": {w.callers["reader"], tokenOf("nobody"), http.StatusSwitchingProtocols, http.StatusBadRequest},
		"two tokens, garbage":      {w.callers["garbage"], tokenOf("reader"), http.StatusSwitchingProtocols, http.StatusSwitchingProtocols},
	} {
		c := *test.caller
		c.name = name
		// A watch does not support a subprotocol that is left because the token is ignored.
		for _, of := range []struct {
			target, subprotocol string
			want                int
		}{{exec, "v4.channel.k8s.io", test.exec}, {watch, "binary.k8s.io", test.watch}} {
			r := request{method: http.MethodGet, target: of.target, header: webSocket(test.token, of.subprotocol)}
			w.audit.SkipT(t)
			first, direct := r.named()
			second, forwarded := r.named()
			first.header.Set("Origin", w.server.url)
			second.header.Set("Origin", f.url)
			_, _, want := w.server.handshake(t, &c, first)
			_, _, got := f.handshake(t, &c, second)
			const chosen = "Sec-Websocket-Protocol"
			if want.StatusCode != of.want || got.StatusCode != want.StatusCode || got.Header.Get(chosen) != want.Header.Get(chosen) {
				t.Errorf("%s: %s: %s %q instead of %s %q", name, of.target, got.Status, got.Header.Get(chosen), want.Status, want.Header.Get(chosen))
			} else if want.StatusCode == http.StatusSwitchingProtocols {
				w.sameIdentity(t, &c, r, direct, forwarded)
			}
		}
	}
}
