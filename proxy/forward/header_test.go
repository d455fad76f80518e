package forward

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// A Connection header names a few headers, which do not pass. One that names many is refused, also
// when it names the same header in the wrong case.
func TestConnectionNames(t *testing.T) {
	from := http.Header{"Connection": {"a, B", "keep-alive"}, "A": {"1"}, "B": {"2"}, "C": {"3", "4"}, "X-Remote-User": {"a"}, "Host": {"a"}}
	to := http.Header{}
	if err := copyHeader(to, from); err != nil || len(to) != 1 || strings.Join(to["C"], "") != "34" {
		t.Errorf("%v, %v", to, err)
	}
	many := make([]string, namedMax+1)
	for i := range many {
		many[i] = "h" + strings.Repeat("x", i)
	}
	for n, refused := range map[int]bool{namedMax: false, namedMax + 1: true} {
		from := http.Header{"Connection": {strings.Join(many[:n], ",")}}
		if err := copyHeader(http.Header{}, from); (err != nil) != refused {
			t.Errorf("%d names: %v", n, err)
		}
		x := &roundTrip{lifetime: lifetime{Request: &exchange.Request{Method: http.MethodGet, Target: "/api", Header: from}}}
		if _, err := x.outgoing(t.Context(), &url.URL{Scheme: "https", Host: "upstream"}, nil); (err != nil) != refused {
			t.Errorf("request with %d names: %v", n, err)
		}
	}
	one := http.Header{"Connection": {strings.Repeat("zzzz,", 6000) + "x"}}
	if err := copyHeader(http.Header{}, one); err != nil {
		t.Errorf("the same name often: %v", err)
	}
}

// A request stays below the path of upstream's address. Without such a path, nothing is refused.
func TestPathsBelowUpstreams(t *testing.T) {
	for target, above := range map[string]bool{
		"/api/v1/nodes":                    false,
		"/api/v1/nodes/..a":                false,
		"/api/v1/nodes/a..?a=/../":         false,
		"/api/v1/nodes/...":                false,
		"/../../../v3/users":               true,
		"/api/v1/nodes/..":                 true,
		"/api/./v1":                        true,
		"/%2e%2e/%2E%2e/v3/users":          true,
		"/api/v1/..%2f..%2f..%2fv3/users":  true,
		"/api/v1/..%5c..%5c..%5cv3/users":  true,
		"/api/v1/..;a=b/..;/..;/v3/users":  true,
		"/api/v1/namespaces/a/pods/b;c/..": true,
	} {
		x := &roundTrip{lifetime: lifetime{Request: &exchange.Request{Method: http.MethodGet, Target: target, Header: http.Header{}}}}
		for base, refused := range map[string]bool{"": false, "/": false, "/k8s/clusters/c-1": above, "/k8s/clusters/c-1/": above} {
			out, err := x.outgoing(t.Context(), &url.URL{Scheme: "https", Host: "upstream", Path: base}, nil)
			if (err != nil) != refused {
				t.Errorf("%q below %q: %v", target, base, err)
			}
			if err == nil && !strings.HasPrefix(out.URL.RequestURI(), strings.TrimSuffix(base, "/")+target[:4]) {
				t.Errorf("%q below %q becomes %q", target, base, out.URL.RequestURI())
			}
		}
	}
}
