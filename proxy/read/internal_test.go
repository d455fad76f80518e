package read

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// stillFeeds are feeds of caches that are always up to date.
type stillFeeds struct {
	Feeds
	caches map[object.Encoding]*watchcache.Cache
	aged   time.Duration // the age that a state may have; 0 for none, less if it has become too old
	fresh  proof         // nil: the state is known to be up to date
	opened atomic.Int32
}

// proof is Fresh of a feed.
type proof func(ctx context.Context, waits bool) error

func (fs *stillFeeds) Open(_ context.Context, _ schema.GroupVersionResource, _ object.Want, e object.Encoding, _ uint64) (Feed, error) {
	fs.opened.Add(1)
	if fs.caches[e] == nil {
		return nil, object.ErrNoEncoding
	}
	return &stillFeed{cache: fs.caches[e], aged: fs.aged, fresh: fs.fresh}, nil
}

func (fs *stillFeeds) Caches(schema.GroupVersionResource, object.Want) bool { return true }

func (fs *stillFeeds) AnswersGets(_ schema.GroupVersionResource, _ object.Want, e object.Encoding) bool {
	return fs.aged != 0 && fs.caches[e] != nil
}

type stillFeed struct {
	Feed
	cache *watchcache.Cache
	aged  time.Duration
	fresh proof
}

func (f *stillFeed) Cache() *watchcache.Cache    { return f.cache }
func (f *stillFeed) Warnings() []string          { return nil }
func (f *stillFeed) Lost() (time.Duration, bool) { return 0, false }
func (f *stillFeed) CompressesWatches() bool     { return false }
func (f *stillFeed) ServesConsistent() bool      { return true }

func (f *stillFeed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	if f.aged <= 0 {
		return s, 0, false
	}
	s, err := f.cache.Snapshot()
	return s, f.aged, err == nil
}

func (f *stillFeed) Fresh(ctx context.Context, waits bool) (s watchcache.Snapshot, err error) {
	if f.fresh != nil {
		if err = f.fresh(ctx, waits); err != nil {
			return s, err
		}
	}
	return f.cache.Snapshot()
}

// ask sends a GET with an Accept header, or with another header "Name: value".
func (fs *stillFeeds) ask(t *testing.T, rd *Reader, target string, headers ...string) Result {
	t.Helper()
	req := &exchange.Request{Method: http.MethodGet, Target: target, Header: http.Header{}}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	req.SplitTarget()
	req.Route = exchange.ParseRoute(http.MethodGet, req.Path)
	return rd.Answer(t.Context(), req)
}

// newStill returns empty feeds of a resource's objects and rows. The parameter empty is the JSON of
// no rows.
func newStill(t *testing.T, gvr schema.GroupVersionResource, kind, empty string) (*stillFeeds, *Reader) {
	t.Helper()
	fs := &stillFeeds{caches: map[object.Encoding]*watchcache.Cache{}}
	for _, e := range []object.Encoding{object.JSON, object.Table} {
		r := object.Resource{GVR: gvr, Kind: kind, ListKind: kind + "List", Namespaced: true, Encoding: e}
		r.Columns.Definitions, r.Columns.Empty = []byte(`[{"name":"Name","type":"string"}]`), empty
		fs.caches[e] = watchcache.New(r, watchcache.Limits{Age: time.Hour, Events: 100, Bytes: 1 << 20})
	}
	const memory = 1 << 30
	return fs, New(Config{
		Feeds: fs, Derived: newDerived(t, 1<<20), Memory: fair.NewPool(memory, false), Limits: unlimited{}, Metrics: uncounted{}, Log: zap.NewNop(),
		Life: exchange.NewLife(),
	}, Options{SyncTimeout: time.Second})
}

// fill fills the caches with objects of annotations by "namespace/name". Upstream shows none of
// them in the rows.
func (fs *stillFeeds) fill(t *testing.T, annotations map[string]string) {
	t.Helper()
	var objects, rows []*object.Object
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		annotation := annotations[key]
		namespace, name, _ := strings.Cut(key, "/")
		own := fmt.Sprintf(`"name":%q,"namespace":%q,"uid":"u","resourceVersion":"5"`, name, namespace)
		meta := own
		if annotation != "" {
			meta += fmt.Sprintf(`,"annotations":{%q:"1"}`, annotation)
		}
		objects = append(objects, objectOf(t, fs.caches[object.JSON].Resource(), `{"metadata":{%s},"spec":{}}`, meta))
		row, err := fs.caches[object.Table].Resource().ParseRow(gjson.Parse(
			fmt.Sprintf(`{"cells":[%q],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{%s}}}`, name, own)))
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	fs.caches[object.JSON].Writer().Reset(objects, 10)
	fs.caches[object.Table].Writer().Reset(rows, 10)
}

const (
	acceptTable = "Accept: application/json;as=Table;g=meta.k8s.io;v=v1"
)

// The bookmarks of a watch of Tables have the metadata that upstream shows in bookmarks of Tables.
func TestInternalMetadataOfBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, rd := newStill(t, schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, "DaemonSet", "[]")
		fs.fill(t, nil)
		for e, bookmark := range map[object.Encoding]string{
			object.JSON: `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"resourceVersion":"1","annotations":{"deprecated.daemonset.template.generation":"0"}},"spec":{}}`,
			object.Table: `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"columnDefinitions":null,
				"rows":[{"cells":[""],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"}}}]}`,
		} {
			b, _, err := fs.caches[e].Resource().ParseBookmark([]byte(bookmark))
			if err != nil {
				t.Fatal(err)
			}
			fs.caches[e].Writer().SetBookmark(b)
		}
		for include, want := range map[string]string{
			"":         `"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"10","annotations":{"k8s.io/initial-events-end":"true"}}}}]}}`,
			"Metadata": `"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"10","annotations":{"k8s.io/initial-events-end":"true"}}}}]}}`,
			"Object":   `"annotations":{"deprecated.daemonset.template.generation":"0","k8s.io/initial-events-end":"true"}},"spec":{}}}]}}`,
		} {
			v := fs.ask(t, rd, "/apis/apps/v1/daemonsets?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&includeObject="+include, acceptTable)
			if v.Response == nil {
				t.Fatalf("%+v", v)
			}
			var written strings.Builder
			v.Response.Body.(exchange.Stream).Run(t.Context(), &exchange.ChunkWriter{To: &written, Unchunked: true})
			if first, _, _ := strings.Cut(written.String(), "\n"); !strings.HasSuffix(first, want) {
				t.Errorf("%q: got %s\nwant %s", include, first, want)
			}
		}
	})
}

// A Table without rows is written as upstream writes it.
func TestEmptyTables(t *testing.T) {
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "limitranges"}
	for _, empty := range []string{"null", "[]", ""} {
		fs, rd := newStill(t, gvr, "LimitRange", empty)
		fs.fill(t, map[string]string{"a/x": ""})
		for target, rows := range map[string]string{
			"/api/v1/limitranges?resourceVersion=0&labelSelector=nope": empty,
			"/api/v1/namespaces/b/limitranges?resourceVersion=0":       empty,
			"/api/v1/namespaces/b/limitranges":                         empty,
			"/api/v1/namespaces/b/limitranges?limit=5":                 empty,
			"/api/v1/namespaces/a/limitranges":                         `[{"cells":["x"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"x","namespace":"a","uid":"u","resourceVersion":"5"}}}]`,
		} {
			v := fs.ask(t, rd, target, acceptTable)
			if rows == "" {
				if v.Response != nil || v.Reason != OtherTable {
					t.Errorf("%s, not knowing how: %+v", target, v)
				}
				continue
			}
			if v.Response == nil {
				t.Fatalf("%s: %+v", target, v)
			}
			want := `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"10"},"columnDefinitions":[{"name":"Name","type":"string"}],"rows":` + rows + "}\n"
			if got := string(bodyOf(t, v.Response)); got != want {
				t.Errorf("%s: got %s\nwant %s", target, got, want)
			}
		}
	}
}
