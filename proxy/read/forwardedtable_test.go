package read

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Upstream answers Tables with other ages than those of objects. The proxy starts no feed for them.
func TestForwardedTables(t *testing.T) {
	const path = "/apis/batch/v1/jobs"
	fs, rd := newStill(t, schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, "Job", "[]")
	fs.fill(t, map[string]string{"a/x": ""})
	for _, query := range []string{"", "?resourceVersion=0", "?watch=1&resourceVersion=10"} {
		if v := fs.ask(t, rd, path+query, acceptTable+",application/json"); v.Answer != nil || v.Reason != Table || fs.opened.Load() != 0 {
			t.Errorf("%s: %+v, %d feeds", query, v, fs.opened.Load())
		}
	}
}
