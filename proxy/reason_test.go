package proxy

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// The metrics count the reasons for which upstream answered.
func TestReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, get := recentFrom(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, object.JSON)
		const one, table = recentPath + "/c-000000", "application/json;as=Table;g=meta.k8s.io;v=v1"
		for _, test := range []struct{ target, accept, want string }{
			{"/version", anyJSON, "not-a-read"},
			{one + "/status", anyJSON, "not-a-read"},
			{recentPath + "?unknown=1", anyJSON, "parameters"},
			{recentPath + "?fieldSelector=no.such.field%3D1&resourceVersion=0", anyJSON, "parameters"},
			{recentPath + "?resourceVersion=0&includeObject=None", anyJSON, "parameters"},
			{recentPath + "?resourceVersion=0", "application/cbor", "form"},
			{recentPath + "?resourceVersion=0&pretty=true", anyJSON, "form"},
			{one + "?resourceVersion=0", "application/json;pretty=1", "form"},
			{recentPath + "?resourceVersion=0", table, "table"},
			{one, "application/vnd.kubernetes.protobuf", "most-recent"},
			{recentPath + "?resourceVersion=1&resourceVersionMatch=Exact", anyJSON, "too-old"},
		} {
			before := map[string]int64{}
			for _, f := range s.metrics.Recent() {
				before[f.Reason] += f.Count
			}
			_ = get(test.target, test.accept).Body.Close()
			for _, f := range s.metrics.Recent() {
				before[f.Reason] -= f.Count
			}
			for reason, n := range before {
				if n != 0 && reason != test.want || reason == test.want && n != -1 {
					t.Errorf("%s as %s: %s %d, want %s", test.target, test.accept, reason, -n, test.want)
				}
			}
			if _, ok := before[test.want]; !ok {
				t.Errorf("%s as %s: no %s", test.target, test.accept, test.want)
			}
		}
	})
}
