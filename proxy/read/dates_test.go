package read

import (
	"io"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Upstream answers the Tables of a custom resource with a date other than its creation.
func TestTablesWithOtherDates(t *testing.T) {
	for path, cached := range map[string]bool{".metadata.creationTimestamp": true, ".spec.at": false} {
		gvr := schema.GroupVersionResource{Group: "e.c", Version: "v1", Resource: "gauges"}
		fs, rd := newStill(t, gvr, "Gauge", "[]")
		for e, c := range fs.caches {
			r := *c.Resource()
			r.SelfDescribing = true
			r.Columns.Definitions = []byte(`[{"name":"Name","type":"string"},{"name":"When","type":"date"}]`)
			r.Columns.Defined, r.Columns.Paths = true, []string{path}
			fs.caches[e] = watchcache.New(r, watchcache.Limits{Age: time.Hour, Events: 100, Bytes: 1 << 20})
			fs.caches[e].Reset(nil, 10)
		}
		for _, target := range []string{"?resourceVersion=0", "", "?watch=1&resourceVersion=10&timeoutSeconds=1"} {
			v := fs.ask(t, rd, "/apis/e.c/v1/gauges"+target, acceptTable)
			if (v.Answer != nil) != cached || !cached && v.Reason != Table {
				t.Errorf("%s: %s: %+v", path, target, v)
			}
			if v.Answer != nil && v.Answer.Stream != nil {
				v.Answer.Stream.Run(t.Context(), &exchange.ChunkWriter{To: io.Discard})
			}
		}
		if v := fs.ask(t, rd, "/apis/e.c/v1/gauges?resourceVersion=0"); v.Answer == nil {
			t.Errorf("%s: whole objects: %+v", path, v)
		}
	}
}
