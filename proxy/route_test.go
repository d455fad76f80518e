package proxy

import (
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestParseRoute(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	for _, tc := range []struct {
		method, path string
		want         route
	}{
		{"GET", "/api/v1/pods", route{gvr: pods, verb: "list", resource: true, plain: true}},
		{"GET", "/api/v1/namespaces/ns/pods", route{gvr: pods, namespace: "ns", verb: "list", resource: true, plain: true}},
		{"GET", "/api/v1/namespaces/ns/pods/p", route{gvr: pods, namespace: "ns", name: "p", verb: "get", resource: true, plain: true}},
		{"GET", "/api/v1/namespaces/ns/pods/p/log", route{gvr: pods, namespace: "ns", name: "p", subresource: "log", verb: "get", resource: true}},
		{"GET", "/api/v1/namespaces", route{gvr: namespaces, verb: "list", resource: true, plain: true}},
		{"GET", "/api/v1/namespaces/ns", route{gvr: namespaces, namespace: "ns", name: "ns", verb: "get", resource: true, plain: true}},
		{"GET", "/api/v1/namespaces/ns/namespaces/ns", route{gvr: namespaces, namespace: "ns", name: "ns", verb: "get", resource: true}},
		{"PUT", "/api/v1/namespaces/ns/finalize", route{gvr: namespaces, namespace: "ns", name: "ns", subresource: "finalize", verb: "update", resource: true}},
		{"GET", "/apis/apps/v1/deployments", route{gvr: deployments, verb: "list", resource: true, plain: true}},
		{"DELETE", "/apis/apps/v1/namespaces/ns/deployments", route{gvr: deployments, namespace: "ns", verb: "deletecollection", resource: true, plain: true}},
		{"POST", "/apis/apps/v1/namespaces/ns/deployments", route{gvr: deployments, namespace: "ns", verb: "create", resource: true, plain: true}},
		{"GET", "/api/v1/watch/pods", route{gvr: pods, verb: "watch", resource: true}},
		{"GET", "/api/v1/watch/namespaces/ns/pods/p", route{gvr: pods, namespace: "ns", name: "p", verb: "watch", resource: true}},
		{"GET", "/api/v1/pods/", route{gvr: pods, verb: "list", resource: true}},
		{"GET", "//api/v1/pods", route{gvr: pods, verb: "list", resource: true}},
		{"GET", "/api/v1/namespaces/../pods", route{gvr: pods, namespace: "..", verb: "list", resource: true}},
		{"GET", "/api/v1/%77atch/pods", route{gvr: pods, verb: "watch", resource: true}},
		{"GET", "/api/v1/namespaces/n%73/pods", route{gvr: pods, namespace: "ns", verb: "list", resource: true}},
		{"GET", "/api/v1/namespaces/ns/pods/p/log/more", route{gvr: pods, namespace: "ns", name: "p", subresource: "log", verb: "get", resource: true}},
		{"GET", "/api/v1/watch", route{gvr: schema.GroupVersionResource{Version: "v1"}, verb: "list", resource: true}},
		{"GET", "/api/v1/proxy/namespaces/ns/pods/p", route{gvr: pods, namespace: "ns", name: "p", verb: "proxy", resource: true}},
		{"GET", "/api/v1", route{verb: "get"}},
		{"GET", "/apis/apps/v1", route{verb: "get"}},
		{"GET", "/version", route{verb: "get"}},
		{"GET", "/", route{verb: "get"}},
		{"BREW", "/coffee", route{verb: "other"}},
	} {
		if got := parseRoute(tc.method, tc.path); got != tc.want {
			t.Errorf("%s %s:\n got %+v\nwant %+v", tc.method, tc.path, got, tc.want)
		}
	}
}

// Whatever the path: no panic, and what is plain means to kube-apiserver what it means
// here.
func FuzzParseRoute(f *testing.F) {
	for _, path := range []string{
		"", "/", "/api/v1/watch", "/api/v1/watch/namespaces", "/apis/a/b/namespaces/c/d/e/f", "/api//pods", "/api/v1/namespaces//pods",
		"/api/v1/pods", "/api/v1/namespaces/a", "/api/v1/namespaces/a/pods/b", "/apis/a/b/c/d", "/api/v1/namespaces/a/status", "/api/v1/proxy/pods",
		"/api/v1/namespaces/a/namespaces", "/apis/api/v1/pods", "/api/apis/v1/pods", "/api/v1/redirect/pods/a", "/api/v1/namespaces/a/proxy/b",
	} {
		f.Add("GET", path)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		rt := parseRoute(method, path)
		if !rt.plain {
			return
		}
		if !rt.resource || !canonical(path) || rt.gvr.Resource == "" || rt.subresource != "" {
			t.Errorf("%q is taken for plain: %+v", path, rt)
		}
		u, err := url.ParseRequestURI(path)
		if err != nil || u.RawQuery != "" || u.ForceQuery {
			return // no request has such a path
		}
		info, err := requestInfos.NewRequestInfo(&http.Request{Method: method, URL: u})
		if err != nil {
			t.Fatal(err)
		}
		theirs := route{
			gvr:       schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
			namespace: info.Namespace, name: info.Name, subresource: info.Subresource, verb: info.Verb, resource: info.IsResourceRequest, plain: true,
		}
		if rt.verb == "options" || rt.verb == "other" {
			theirs.verb = rt.verb // RequestInfo has no name for it; nothing of it is answered from a cache
		}
		if rt != theirs {
			t.Errorf("%s %q:\n got %+v\nwant %+v", method, path, rt, theirs)
		}
	})
}

// A watch is one to upstream, too, if the rest of its query cannot be read.
func TestMalformedWatch(t *testing.T) {
	for query, want := range map[string]bool{
		"watch=1": true, "watch=1&x=%zz": true, "x=a;b&watch=true": true, "watch": true, "watch=false&x=%zz": false, "x=%zz": false, "watch=%zz": false,
	} {
		if isWatch(query) != want {
			t.Errorf("%s: %t", query, !want)
		}
	}
}
