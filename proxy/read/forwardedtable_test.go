package read

import (
	"errors"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// Upstream answers Tables with other ages than those of objects. The proxy starts no feed for them.
// A narrowed read, which upstream cannot answer, gets the next form that its client accepts.
func TestForwardedTables(t *testing.T) {
	const path = "/apis/batch/v1/jobs"
	fs, rd := newStill(t, schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, "Job", "[]")
	fs.fill(t, map[string]string{"a/x": ""})
	for _, query := range []string{"", "?resourceVersion=0", "?watch=1&resourceVersion=10"} {
		if v := fs.ask(t, rd, path+query, acceptTable+",application/json"); v.Answer != nil || v.Reason != Table || fs.opened.Load() != 0 {
			t.Errorf("%s: %+v, %d feeds", query, v, fs.opened.Load())
		}
	}
	asTable, whole := wire.Choice{Table: true}, wire.Choice{}
	r := &read{Request: &exchange.Request{Header: http.Header{}}, Route: exchange.ParseRoute(http.MethodGet, path), refusal: &exchange.Response{}}
	if err := rd.open(t.Context(), r, []wire.Choice{asTable, whole}); err != nil || r.choice != whole {
		t.Errorf("narrowed: %v, %+v", err, r.choice)
	}
	if err := rd.open(t.Context(), r, []wire.Choice{asTable}); !errors.Is(err, Form) {
		t.Errorf("narrowed, in no other form: %v", err)
	}
}
