package listen

import (
	"net/http"
	"reflect"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// ignoreUpgrade removes the offer of h2c and nothing else, and a request with a body does not want
// to leave HTTP.
func TestUpgrades(t *testing.T) {
	for name, test := range map[string]struct {
		header, want http.Header
		wants        bool // without a body
	}{
		"h2c": {
			http.Header{"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"}, "Http2-Settings": {"AAM"}, "Accept": {"*/*"}},
			http.Header{"Accept": {"*/*"}},
			false,
		},
		"h2c beside others": {
			http.Header{"Connection": {"keep-alive , upgrade", "X-Mine,HTTP2-SETTINGS"}, "Upgrade": {"other, H2C"}, "Http2-Settings": {"AAM"}, "X-Mine": {"1"}},
			http.Header{"Connection": {"keep-alive, X-Mine"}, "X-Mine": {"1"}},
			false,
		},
		"h2c not for this connection": {
			http.Header{"Upgrade": {"h2c"}, "Http2-Settings": {"AAM"}},
			http.Header{"Http2-Settings": {"AAM"}},
			false,
		},
		"websocket": {
			http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}},
			http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}},
			true,
		},
		"nothing": {http.Header{"Connection": {"keep-alive"}}, http.Header{"Connection": {"keep-alive"}}, false},
	} {
		for _, body := range []*exchange.Body{nil, {}} {
			r := &exchange.Request{Header: test.header.Clone(), Body: body}
			ignoreUpgrade(r.Header)
			if got := r.WantsUpgrade(); got != (test.wants && body == nil) || !reflect.DeepEqual(r.Header, test.want) {
				t.Errorf("%s, body %t: %v, leaves HTTP: %t", name, body != nil, r.Header, got)
			}
		}
	}
}
