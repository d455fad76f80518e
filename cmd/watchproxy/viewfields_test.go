package main

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

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
	cache.Reset(all, 1)
	return upstream.FeedStatus{GVR: r.GVR, Cache: cache}
}

// The fields that no object of a filled cache has are in the status, and each is logged once.
func TestUnfoundFields(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	views := []config.View{
		{Name: "slim", Resources: []string{"pods", "nodes"}, Fields: []string{
			"kind", "spec.nodeName", "spec.podCIDR", "spec.nodename", `metadata["a.b"]`, "status.podIPs[*].ip", "status.podIPs.ip", "status.none[*].ip",
		}},
		{Name: "all", Drop: []string{"data.a", "metadata.name.first"}},
	}
	feeds := []upstream.FeedStatus{{GVR: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Cache: watchcache.New(object.Resource{}, watchcache.Limits{})}}
	v := newViewFields(views, func() []upstream.FeedStatus { return feeds }, zap.New(core))
	expect := func(logs int, want ...status.UnfoundField) {
		t.Helper()
		if got := v.look(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if n := len(logged.TakeAll()); n != logs {
			t.Errorf("%d fields were logged, want %d", n, logs)
		}
	}
	expect(0)
	feeds = append(feeds, feedOf(t, "pods", "", 0))
	expect(0)
	feeds[1] = feedOf(t, "pods", `,"spec":{"nodeName":"n"},"status":{"podIPs":[{"ip":"::1"}],"none":[]}`, fieldSample+1)
	of := func(view, resource string, objects int, fields ...string) (all []status.UnfoundField) {
		for _, f := range fields {
			all = append(all, status.UnfoundField{View: view, Field: f, Resource: resource, Objects: objects})
		}
		return all
	}
	wrong := of("slim", "pods", fieldSample, "spec.nodename", `metadata["a.b"]`, "status.podIPs.ip", "status.none[*].ip")
	never := of("all", "pods", fieldSample, "data.a", "metadata.name.first")
	first := slices.Concat(of("slim", "pods", fieldSample, "spec.podCIDR"), wrong, never)
	expect(len(first), first...)
	expect(0, first...)
	feeds[0] = feedOf(t, "secrets", `,"data":{"a":null},"spec":{"nodename":"n"}`, 1)
	expect(1, slices.Concat(of("slim", "pods", fieldSample, "spec.podCIDR"), wrong, of("all", "secrets", 1, "metadata.name.first"), never[1:])...)
	feeds[0] = feedOf(t, "nodes", `,"spec":{"podCIDR":"::/64","nodename":"n"},"status":{"podIPs":{"ip":"::1"}}`, 1)
	feeds[1] = feedOf(t, "pods", `,"status":{"none":[{"ip":null}]}`, 1)
	expect(2, slices.Concat(
		of("slim", "nodes", 1, `metadata["a.b"]`), of("slim", "pods", 1, `metadata["a.b"]`),
		of("all", "nodes", 1, "metadata.name.first"), of("all", "pods", 1, "metadata.name.first"))...)
}
