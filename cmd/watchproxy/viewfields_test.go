package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// feedOf returns the status of a feed with n objects. Each has the members of more.
func feedOf(t *testing.T, resource, more string, n int) upstream.FeedStatus {
	t.Helper()
	r := object.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: resource}, Kind: "Kind", ListKind: "KindList"}
	var all []*object.Object
	for i := range n {
		o, err := r.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"o-%04d","uid":"u","resourceVersion":"1"}%s}`, i, more))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	cache := watchcache.New(r, watchcache.Limits{})
	cache.Writer().Reset(all, 1)
	return upstream.FeedStatus{GVR: r.GVR, Cache: cache}
}

// A field is unfound if all resources of its view have objects and none has the field. It is logged
// once. If an object has the field once, nobody looks for it again.
func TestUnfoundFields(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	slim := []string{"pods", "nodes"}
	views := []config.View{
		{Name: "slim", Resources: slim, Fields: []string{
			"kind", "metadata.namespace", `metadata["namespace"]`, "spec.nodeName", "spec.podCIDR", "spec.nodename", `metadata["a.b"]`, "status.podIPs[*].ip", "status.podIPs.ip", "status.none[*].ip",
		}},
		{Name: "secret", Resources: []string{"secrets"}, Drop: []string{"data.a", "metadata.name.first"}},
		{Name: "all", Drop: []string{"data.b"}},
	}
	var feeds []upstream.FeedStatus
	v := newViewFields(views, zap.New(core))
	expect := func(logs int, want ...status.UnfoundField) {
		t.Helper()
		v.look(feeds)
		if got := *v.unfound.Load(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if n := len(logged.TakeAll()); n != logs {
			t.Errorf("%d fields were logged, want %d", n, logs)
		}
	}
	of := func(fields ...string) (all []status.UnfoundField) {
		for _, f := range fields {
			all = append(all, status.UnfoundField{View: "slim", Field: f, Resources: slim})
		}
		return all
	}
	nodes := feedOf(t, "nodes", `,"spec":{"podCIDR":"::/64"}`, 1)
	pods := feedOf(t, "pods", `,"spec":{"nodeName":"n"},"status":{"podIPs":[{},{"ip":"::1"}],"none":[]}`, 2)
	unready := upstream.FeedStatus{GVR: nodes.GVR, Cache: watchcache.New(object.Resource{}, watchcache.Limits{})}
	protobuf := nodes
	protobuf.Encoding = object.Protobuf
	for _, other := range []upstream.FeedStatus{unready, protobuf, feedOf(t, "nodes", "", 0), feedOf(t, "secrets", "", 0)} {
		feeds = []upstream.FeedStatus{pods, other}
		expect(0)
	}
	feeds = []upstream.FeedStatus{nodes, pods}
	wrong := of("spec.nodename", `metadata["a.b"]`, "status.podIPs.ip", "status.none[*].ip")
	expect(len(wrong), wrong...)
	expect(0, wrong...)
	feeds = append(feeds, feedOf(t, "secrets", `,"data":{"a":null},"spec":{"nodename":"n"}`, 1))
	expect(1, append(wrong, status.UnfoundField{View: "secret", Field: "metadata.name.first", Resources: []string{"secrets"}})...)
	feeds = []upstream.FeedStatus{
		feedOf(t, "nodes", `,"spec":{"nodename":"n"},"status":{"podIPs":{"ip":"::1"}}`, 1),
		feedOf(t, "pods", `,"status":{"none":[{"ip":null}]}`, 1),
	}
	expect(0, of(`metadata["a.b"]`)...)
	feeds[0] = feedOf(t, "nodes", "", 1)
	expect(0, of(`metadata["a.b"]`)...)
}

// The sample has objects from all parts of a cache.
func TestFieldsAreSampledEverywhere(t *testing.T) {
	for _, n := range []int{1, fieldSample, fieldSample + 1, 2*fieldSample + 1} {
		var objects []*object.Object
		r := object.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", ListKind: "PodList"}
		for i := range n {
			o, err := r.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"o-%04d","uid":"u","resourceVersion":"1"},"part%d":{}}`, i, i*4/n))
			if err != nil {
				t.Fatal(err)
			}
			objects = append(objects, o)
		}
		cache := watchcache.New(r, watchcache.Limits{})
		cache.Writer().Reset(objects, 1)
		fields := []string{"part0", "part1", "part2", "part3"}
		feeds := []upstream.FeedStatus{{GVR: r.GVR, Cache: cache}}
		v := newViewFields([]config.View{{Name: "v", Resources: []string{"pods"}, Fields: fields}}, zap.NewNop())
		v.look(feeds)
		if got, want := len(*v.unfound.Load()), 4-min(n, 4); got != want {
			t.Errorf("%d objects: %d fields are unfound, want %d", n, got, want)
		}
	}
}

// A look does not copy objects. While nothing is found, it allocates little more than the result.
func TestLookAllocatesLittle(t *testing.T) {
	feed := feedOf(t, "pods", `,"spec":{"text":"`+strings.Repeat("x", 10_000)+`"}`, fieldSample)
	feeds := []upstream.FeedStatus{feed}
	v := newViewFields([]config.View{{Name: "v", Resources: []string{"pods"}, Fields: []string{"spec.a", "status.b"}}}, zap.NewNop())
	if n := testing.AllocsPerRun(10, func() { v.look(feeds) }); n > 20 {
		t.Errorf("%v allocations", n)
	}
}

// The looks are a minute apart.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		feeds := func() []upstream.FeedStatus {
			at = append(at, time.Since(began))
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*lookInterval+time.Second)
		defer cancel()
		newViewFields([]config.View{{Name: "v", Resources: []string{"pods"}, Fields: []string{"spec.a"}}}, zap.NewNop()).run(ctx, feeds)
		if want := []time.Duration{lookInterval, 2 * lookInterval}; !slices.Equal(at, want) {
			t.Errorf("looked at %v, want %v", at, want)
		}
		newViewFields([]config.View{{Name: "v", Fields: []string{"spec.a"}}}, zap.NewNop()).run(t.Context(), nil)
	})
}
