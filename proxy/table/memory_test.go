//go:build verify

package table

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// The rows of ten thousand pods need 6 MiB at most.
func TestMemoryOfRows(t *testing.T) {
	const rows, most = 10_000, 6 << 20
	c := watchcache.New(object.Resource{
		GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true, Encoding: object.Table,
	}, watchcache.Limits{Age: time.Hour, Events: 1000, Bytes: 1 << 20})
	objects := make([]*object.Object, rows)
	before := cachetest.Heap()
	for i := range objects {
		row := fmt.Sprintf(`{"cells":["accounts-api-9898c1d24-%05[1]d","2/2","Running","3 (5m11s ago)","4d21h","10.128.12.%[1]d","worker-pool-1-node-%[1]d","\u003cnone\u003e","\u003cnone\u003e"],`+
			`"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"accounts-api-9898c1d24-%05[1]d","namespace":"accounts","uid":"5d0d77ec-4d07-4e3e-9c2c-846a9%07[1]d","resourceVersion":"%[2]d"}}}`, i, i+1)
		o, err := c.Resource().ParseRow(gjson.Parse(row))
		if err != nil {
			t.Fatal(err)
		}
		objects[i] = o
	}
	c.Writer().Reset(objects, rows+1)
	clear(objects)
	used := cachetest.Heap() - before
	if used > most {
		t.Errorf("%d bytes, %d a row", used, used/rows)
	}
	runtime.KeepAlive(c)
	runtime.KeepAlive(objects)
}
