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
		caller  *caller
		token   string
		want    int
		ignored bool // the token is ignored
	}{
		"token":                    {&caller{}, tokenOf("reader"), http.StatusSwitchingProtocols, false},
		"service account":          {&caller{}, w.callers["robot"].token, http.StatusSwitchingProtocols, false},
		"no rights":                {&caller{}, tokenOf("nobody"), forbidden, false},
		"garbage":                  {&caller{}, "garbage", unknown, false},
		"nobody":                   {&caller{}, "", forbidden, false},
		"as somebody else":         {w.callers["token as reader"].as(impersonating("reader")), "", http.StatusSwitchingProtocols, false},
		"certificate":              {w.callers["certificate"], "", http.StatusSwitchingProtocols, false},
		"certificate and a token":  {w.callers["certificate"], tokenOf("nobody"), http.StatusSwitchingProtocols, true},
		"two tokens, header first": {w.callers["reader"], tokenOf("nobody"), http.StatusSwitchingProtocols, true},
		"two tokens, garbage":      {w.callers["garbage"], tokenOf("reader"), http.StatusSwitchingProtocols, false},
	} {
		for _, target := range []string{exec, watch} {
			t.Run(name+"/"+strings.TrimPrefix(target, pods), func(t *testing.T) {
				subprotocols := []string{"v4.channel.k8s.io"}
				if target == watch {
					subprotocols = []string{"binary.k8s.io"}
				}
				c := *test.caller
				c.name = name
				r := request{method: http.MethodGet, target: target, header: webSocket(test.token, subprotocols...)}
				w.audit.SkipT(t)
				first, direct := r.named()
				second, forwarded := r.named()
				first.header.Set("Origin", w.server.url)
				second.header.Set("Origin", f.url)
				_, _, want := w.server.handshake(t, &c, first)
				_, _, got := f.handshake(t, &c, second)
				expected := test.want
				if target == watch && test.ignored {
					expected = http.StatusBadRequest // watches do not support this subprotocol
				}
				if want.StatusCode != expected {
					t.Errorf("the apiserver says %s, not %d", want.Status, expected)
				}
				if got.StatusCode != want.StatusCode {
					t.Fatalf("%s instead of %s", got.Status, want.Status)
				}
				if a, b := got.Header.Get("Sec-Websocket-Protocol"), want.Header.Get("Sec-Websocket-Protocol"); a != b {
					t.Errorf("subprotocol %q instead of %q", a, b)
				}
				if want.StatusCode == http.StatusSwitchingProtocols {
					w.sameIdentity(t, &c, r, direct, forwarded)
				}
			})
		}
	}
}
