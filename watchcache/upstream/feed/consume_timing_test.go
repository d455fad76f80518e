package feed

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// changes is a stream of changes to pods of some 4.5 KB each.
type changes struct {
	from, to uint64
	spec     string
	left     string
}

// Read implements io.Reader.
func (c *changes) Read(p []byte) (int, error) {
	if c.left == "" {
		if c.from == c.to {
			return 0, io.EOF
		}
		c.from++
		c.left = fmt.Sprintf(`{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"pod-%d","namespace":"default","uid":"u","resourceVersion":"%d"},%s}}`+"\n",
			c.from%10_000, c.from, c.spec)
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// BenchmarkConsume measures how fast a feed can read, check, index and log events if the next event
// is always available. The result is the highest possible rate of changes in one resource.
func BenchmarkConsume(b *testing.B) {
	env := make([]string, 60)
	for i := range env {
		env[i] = fmt.Sprintf(`{"name":"VARIABLE_%d","value":"some value of a variable, number %d"}`, i, i)
	}
	spec := `"spec":{"nodeName":"node-1","containers":[{"name":"a","image":"registry/image:tag","env":[` + strings.Join(env, ",") + `]}]},"status":{"phase":"Running"}`
	pods := object.Resource{
		GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", ListKind: "PodList", Namespaced: true,
	}
	cache := watchcache.New(pods, watchcache.Limits{Age: time.Minute, Events: 10_000, Bytes: 64 << 20})
	cache.Writer().Reset(nil, 1)
	f := &streamReader{
		Collection: &Collection{Shared: &Shared{Ledger: noLedger{}}},
		writer:     &Writer{cache: cache}, main: &MainStream{},
	}
	b.ReportAllocs()
	b.ResetTimer()
	s := client.NewJSONStream(&changes{from: 1, to: 1 + uint64(b.N), spec: spec})
	if err := f.readEvents(b.Context(), s, new(Signs)); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// noLedger records nothing.
type noLedger struct{}

func (noLedger) Note(Owner, ...uint64) error { return nil }

func (noLedger) Forget() {}
