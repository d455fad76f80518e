package read

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

var limitRanges = schema.GroupVersionResource{Version: "v1", Resource: "limitranges"}

const (
	inA      = "/api/v1/namespaces/a/limitranges"
	protobuf = "application/vnd.kubernetes.protobuf"
)

// said returns the status and the age of an answer, the code of the only event of a watch, or the
// reason why upstream must answer.
func said(v Result) string {
	if v.Response == nil {
		return string(v.Reason)
	}
	defer v.Response.Abandon()
	if e, ok := v.Response.Body.(*watch.OnlyError); ok {
		return "event " + gjson.GetBytes(e.Event, "object.code").Raw
	}
	return strings.TrimSpace(fmt.Sprint(v.Response.Status, " ", v.Response.Header.Get("Age")))
}

// A read of the most recent state may get a state of the resource's maxAge, with its age, unless
// the client limits the age. Upstream answers a get if the client limits the age, or if the cache
// lacks the form that upstream would choose.
func TestAges(t *testing.T) {
	for _, test := range []struct{ target, header, want string }{
		{inA, "", "200 2"},
		{inA, "Cache-Control: no-cache", "200"},
		{inA + "?resourceVersion=0", "", "200"},
		{inA + "?resourceVersion=5", "", "200"},
		{"/api/v1/limitranges?limit=1", "", "200 2"},
		{"/api/v1/limitranges?watch=1", "", "200 2"},
		{"/api/v1/limitranges?watch=1", "Cache-Control: max-age=0", "200"},
		{inA + "/x", "", "200 2"},
		{inA + "/x", "Cache-Control: no-store, no-transform", "most-recent"},
		{inA + "/x", "Accept: " + protobuf + ",application/json", "most-recent"},
		{inA + "/x", acceptTable + ",application/json", "most-recent"},
		{inA + "/x?resourceVersion=0", "", "200"},
		{inA + "/missing", "", "404 2"},
	} {
		fs, rd := newStill(t, limitRanges, "LimitRange", "[]")
		fs.fill(t, map[string]string{"a/x": ""})
		fs.aged = 1500 * time.Millisecond
		v := fs.ask(t, rd, test.target, test.header)
		if v.Response != nil && v.Response.Source != exchange.FromCache {
			t.Errorf("%s, %s: the source is %s", test.target, test.header, v.Response.Source)
		}
		if got := said(v); got != test.want {
			t.Errorf("%s, %s: %s, want %s", test.target, test.header, got, test.want)
		}
		fs.aged = -1
		if got := said(fs.ask(t, rd, inA+"/x")); got != "most-recent" {
			t.Errorf("a get of a state that has become too old: %s", got)
		}
	}
}

// Upstream's own reasons are for metrics and logs.
func TestReasons(t *testing.T) {
	fs, rd := newStill(t, limitRanges, "LimitRange", "[]")
	fs.fill(t, map[string]string{"a/x": ""})
	for _, test := range []struct{ target, accept, want string }{
		{"/version", "", "not-a-read"},
		{inA + "/x/status", "", "not-a-read"},
		{inA + "?unknown=1", "", "parameters"},
		{inA + "?fieldSelector=no.such.field%3D1&resourceVersion=0", "", "parameters"},
		{inA + "?resourceVersion=0&includeObject=Object", "", "parameters"},
		{inA + "?resourceVersion=0&includeObject=None", acceptTable[len("Accept: "):], "parameters"},
		{inA + "?resourceVersion=0", "application/cbor", "form"},
		{inA + "?resourceVersion=0&pretty=true", "", "form"},
		{inA + "/x?resourceVersion=0", "application/json;pretty=1", "form"},
		{inA + "?resourceVersion=0", protobuf, "form"},
		{inA + "/x", "", "most-recent"},
		{inA + "?resourceVersion=1&resourceVersionMatch=Exact", "", "too-old"},
	} {
		if got := said(fs.ask(t, rd, test.target, "Accept: "+test.accept)); got != test.want {
			t.Errorf("%s as %q: %s, want %s", test.target, test.accept, got, test.want)
		}
	}
	for name, rows := range map[string]object.Resource{
		"no rows": *fs.caches[object.JSON].Resource(),
		"another date": {Encoding: object.Table, SelfDescribing: true, Columns: object.Columns{
			Defined: true, Definitions: []byte(`[{"name":"Name","type":"string"},{"name":"When","type":"date"}]`), Paths: []string{".spec.at"},
		}},
	} {
		fs.caches[object.Table] = watchcache.New(rows, watchcache.Limits{})
		if got := said(fs.ask(t, rd, inA+"?resourceVersion=0", acceptTable)); got != "table" {
			t.Errorf("a Table, %s: %s", name, got)
		}
	}
}

// Upstream answers Tables whose ages are not those of objects, and metadata that it makes from its
// internal version. The proxy starts no feed for them. It has whole objects.
func TestForwardedForms(t *testing.T) {
	const partial, partials = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1", ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	for _, test := range []struct{ path, query, accept, want string }{
		{"/apis/batch/v1/jobs", "?resourceVersion=0", strings.TrimPrefix(acceptTable, "Accept: ") + ",application/json", "table"},
		{"/apis/batch/v1/jobs", "?watch=1&resourceVersion=10", strings.TrimPrefix(acceptTable, "Accept: "), "table"},
		{"/apis/apps/v1/deployments", "", "application/json" + partials, "form"},
		{"/apis/apps/v1/daemonsets", "?resourceVersion=0", protobuf + partials, "form"},
		{"/apis/autoscaling/v1/horizontalpodautoscalers", "?watch=1", "application/json" + partial, "form"},
	} {
		rt := exchange.ParseRoute("GET", test.path)
		fs, rd := newStill(t, rt.GVR, "Kind", "[]")
		fs.fill(t, map[string]string{"a/x": ""})
		if got := said(fs.ask(t, rd, test.path+test.query, "Accept: "+test.accept)); got != test.want || fs.opened.Load() != 0 {
			t.Errorf("%s%s as %s: %s after %d feeds", test.path, test.query, test.accept, got, fs.opened.Load())
		}
		if got := said(fs.ask(t, rd, test.path+test.query)); got != "200" {
			t.Errorf("%s%s: %s", test.path, test.query, got)
		}
	}
}

// takes returns a proof that ends at a time after its first call.
func takes(d time.Duration) proof {
	var end time.Time
	return func(ctx context.Context, _ bool) error {
		if end.IsZero() {
			end = time.Now().Add(d)
		}
		select {
		case <-time.After(time.Until(end)):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A proof that the cache is up to date may be slow or fail. A client's timeout limits the wait for
// it, except that of a watch, as for upstream. A list does not wait for a proof that takes seconds,
// unless it has a resourceVersion. If upstream does not say whether it has reached a future
// resourceVersion, a read is refused after the time in which kube-apiserver refuses it.
func TestProofs(t *testing.T) {
	silent := func(ctx context.Context, _ bool) error {
		<-ctx.Done()
		return watchcache.ErrNoProgress
	}
	long := func(_ context.Context, waits bool) error {
		if !waits {
			return errors.New("it takes too long")
		}
		return nil
	}
	slow := func() proof { return takes(2 * time.Second) }
	for _, test := range []struct {
		query string
		proof proof
		want  string
		took  time.Duration
	}{
		{"?timeout=3s", slow(), "200", 2 * time.Second},
		{"?timeout=-1s", slow(), "200", 2 * time.Second},
		{"?timeout=1s", slow(), "not-up-to-date", time.Second},
		{"?timeout=1ns", slow(), "parameters", 0},
		{"?watch=1&timeoutSeconds=1&timeout=1s", slow(), "200", 2 * time.Second},
		{"?watch=1&timeoutSeconds=1&timeout=1ns", slow(), "parameters", 0},
		{"", long, "not-up-to-date", 0},
		{"?limit=1", long, "not-up-to-date", 0},
		{"?timeoutSeconds=5", long, "not-up-to-date", 0},
		{"?watch=1&timeoutSeconds=1", long, "200", 0},
		{"?resourceVersion=11", long, "504", futureWait},
		{"?resourceVersion=12", takes(4 * time.Second), "200", streamLag + 4*time.Second}, // which upstream has reached before
		{"?resourceVersion=1000000", silent, "504", futureWait},
		{"?resourceVersion=1000000&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", silent, "event 504", futureWait},
		{"", silent, "no-progress", freshWait},
	} {
		synctest.Test(t, func(t *testing.T) {
			fs, rd := newStill(t, limitRanges, "LimitRange", "[]")
			fs.fill(t, map[string]string{"a/x": ""})
			fs.fresh = test.proof
			if strings.HasSuffix(test.query, "=12") {
				time.AfterFunc(futureWait+time.Second/2, func() { fs.caches[object.JSON].Writer().Advance(12, time.Now()) })
			}
			began := time.Now()
			got := said(fs.ask(t, rd, inA+test.query))
			if took := time.Since(began); got != test.want || took != test.took {
				t.Errorf("%s: %s after %v, want %s after %v", test.query, got, took, test.want, test.took)
			}
		})
	}
}
