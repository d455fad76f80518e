// Package cachetest provides caches for tests of other packages.
package cachetest

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Resource returns the resource of the caches.
func Resource() object.Resource {
	return object.Resource{
		GVR: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true,
	}
}

// ConfigMaps returns a cache of n ConfigMaps in the namespace a, and its state. Their names are
// c-000000, c-000001 and so on, and their resourceVersions count up from 1.
func ConfigMaps(tb testing.TB, n int) (*watchcache.Cache, watchcache.Snapshot) {
	tb.Helper()
	cache := watchcache.New(Resource(), watchcache.Limits{})
	all := make([]*object.Object, n)
	for i := range all {
		all[i] = ConfigMap(tb, i, i+1)
	}
	cache.Writer().Reset(all, uint64(n+1))
	return cache, Snapshot(tb, cache)
}

// ConfigMap returns the i-th ConfigMap at a resourceVersion.
func ConfigMap(tb testing.TB, i, rv int) *object.Object {
	tb.Helper()
	return parse(tb, fmt.Appendf(nil, `{"metadata":{"name":"c-%06d","namespace":"a","uid":"u","resourceVersion":"%d"}}`, i, rv))
}

func parse(tb testing.TB, content []byte) *object.Object {
	tb.Helper()
	resource := Resource()
	o, err := resource.ParseObject(content)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// Snapshot returns the state of a cache.
func Snapshot(tb testing.TB, c *watchcache.Cache) watchcache.Snapshot {
	tb.Helper()
	s, err := c.Snapshot()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Filter returns a filter that selects the namespace a.
func Filter(tb testing.TB, c *watchcache.Cache) *object.Filter {
	tb.Helper()
	f, err := object.NewFilter(c.Resource(), "a", nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// Roomy returns an empty cache at resourceVersion 1 with a log that drops nothing.
func Roomy(tb testing.TB) (*watchcache.Cache, watchcache.Snapshot) {
	tb.Helper()
	cache := watchcache.New(Resource(), watchcache.Limits{Age: time.Hour, Events: 1 << 20, Bytes: 1 << 30})
	cache.Writer().Reset(nil, 1)
	return cache, Snapshot(tb, cache)
}

// Sized returns the ConfigMap c-000000 with size bytes of padding.
func Sized(tb testing.TB, rv uint64, size int) *object.Object {
	tb.Helper()
	return parse(tb, fmt.Appendf(nil, `{"metadata":{"name":"c-000000","namespace":"a","uid":"u","resourceVersion":"%d"},"data":{"p":%q}}`,
		rv, strings.Repeat("x", size)))
}

// Apply applies a write of each object.
func Apply(tb testing.TB, c *watchcache.Cache, objects ...*object.Object) {
	tb.Helper()
	changes := make([]watchcache.Change, len(objects))
	for i, o := range objects {
		changes[i].Object = o
	}
	if err := c.Writer().Apply(changes, time.Now()); err != nil {
		tb.Fatal(err)
	}
}

// SetBookmark sets the template of the cache's bookmarks.
func SetBookmark(tb testing.TB, c *watchcache.Cache) {
	tb.Helper()
	bookmark, _, err := c.Resource().ParseBookmark([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"5","creationTimestamp":null}}`))
	if err != nil {
		tb.Fatal(err)
	}
	c.Writer().SetBookmark(bookmark)
}

// AnySize returns a random size from 1 to most bytes. All orders of magnitude are equally likely.
func AnySize(random *rand.Rand, most int) int {
	return int(math.Exp(random.Float64() * math.Log(float64(most))))
}

// Reader reads a watch and checks that each event comes exactly once and in order.
type Reader struct {
	Body  *bufio.Reader
	Pause func() // before each read
	From  int    // the number of the first event
	Seen  int
	Err   error
}

// Read reads events until the function until returns true or an event is wrong.
func (r *Reader) Read(until func(seen int) bool) {
	for !until(r.Seen) {
		r.Pause()
		line, err := r.Body.ReadString('\n')
		if err != nil {
			r.Err = err
			return
		}
		if want := fmt.Sprintf(`"resourceVersion":"%d"`, r.From+r.Seen); !strings.Contains(line, want) {
			r.Err = fmt.Errorf("event %d: %.200s", r.Seen, line)
			return
		}
		r.Seen++
	}
}
