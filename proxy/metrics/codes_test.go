package metrics

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// A pod may answer with any status code. Known codes become labels, and all others add only their
// classes, with each verb.
func TestCodesAreBounded(t *testing.T) {
	m := New(prometheus.NewRegistry())
	const path = "/api/v1/namespaces/a/pods/p/proxy/status"
	methods := []string{
		http.MethodGet, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, "FOO",
	}
	for _, method := range methods {
		for code := range 1000 {
			route := exchange.ParseRoute(method, path)
			m.Answered(route, exchange.NewResponse(code, exchange.FromUpstream), time.Millisecond)
		}
	}
	const most = 100 // labels of codes
	if n := testutil.CollectAndCount(m.requests.answered); n > most*len(methods) {
		t.Errorf("%d series, at most %d are allowed for each method", n, most)
	}
	count := func(labels ...string) float64 {
		return testutil.ToFloat64(m.requests.answered.WithLabelValues(labels...))
	}
	for _, code := range []int{http.StatusOK, exchange.ClientLeft, http.StatusTooManyRequests} {
		resource := [3]string{}
		if code == http.StatusOK {
			resource = [3]string{"", "v1", "pods/proxy"}
		}
		n := count("get", resource[0], resource[1], resource[2], strconv.Itoa(code), "upstream")
		if n != 1 {
			t.Errorf("%v requests have the code %d", n, code)
		}
	}
	const fives = 100 - 11 // net/http knows 11 codes of this class
	if n := count("get", "", "", "", "5xx", "upstream"); n != fives {
		t.Errorf("%v requests have the code 5xx, want %d", n, fives)
	}
}
