package access

import (
	"maps"
	"net/http"
	"strings"
	"testing"
)

// The apiserver says by itself which pages' requests browsers may send, also to proxies that know no
// anonymous clients. For other pages, their questions are requests without credentials. The answers to the
// requests themselves say so, too, whether or not the cache has the objects.
func TestOrigins(t *testing.T) {
	w := sharedWorld(t)
	cors := func(a answer) http.Header {
		h := maps.Clone(a.header)
		maps.DeleteFunc(h, func(name string, _ []string) bool {
			return !strings.HasPrefix(name, "Access-Control-") && name != "Vary"
		})
		return h
	}
	for name, f := range map[string]*front{"anonymous clients": openFront(t), "none": closedFront(t)} {
		for _, origin := range []string{"https://dash.example", "https://evil.example"} {
			for _, target := range []string{"/api/v1/configmaps", "/api/v1/configmaps?resourceVersion=0", "/api/v1/secrets", "/version", "/nope"} {
				for caller, method := range map[string]string{"anonymous": http.MethodOptions, "admin": http.MethodGet} {
					r := request{method: method, target: target, header: http.Header{"Origin": {origin}}}
					if method == http.MethodOptions {
						r.header["Access-Control-Request-Method"] = []string{http.MethodGet}
						r.header["Access-Control-Request-Headers"] = []string{"authorization"}
					}
					direct, through := w.server.must(t, w.callers[caller], r), f.must(t, w.callers[caller], r)
					if name == "none" && caller == "anonymous" && direct.status == http.StatusForbidden {
						direct.status = http.StatusUnauthorized
					}
					if direct.status != through.status || !maps.EqualFunc(cors(direct), cors(through), func(a, b []string) bool { return strings.Join(a, ",") == strings.Join(b, ",") }) {
						t.Errorf("%s, %s %s of %s: %d %v, directly %d %v", name, method, target, origin, through.status, cors(through), direct.status, cors(direct))
					}
				}
			}
		}
	}
}
