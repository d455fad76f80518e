package exchange

import (
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/access"
)

func TestParseRoute(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	for _, tc := range []struct {
		method, path string
		want         Route
	}{
		{"GET", "/api/v1/pods", Route{GVR: pods, Verb: "list", Resource: true, Plain: true}},
		{"GET", "/api/v1/namespaces/ns/pods", Route{GVR: pods, Namespace: "ns", Verb: "list", Resource: true, Plain: true}},
		{"GET", "/api/v1/namespaces/ns/pods/p", Route{GVR: pods, Namespace: "ns", Name: "p", Verb: "get", Resource: true, Plain: true}},
		{"GET", "/api/v1/namespaces/ns/pods/p/log", Route{GVR: pods, Namespace: "ns", Name: "p", Subresource: "log", Verb: "get", Resource: true}},
		{"GET", "/api/v1/namespaces", Route{GVR: namespaces, Verb: "list", Resource: true, Plain: true}},
		{"GET", "/api/v1/namespaces/ns", Route{GVR: namespaces, Namespace: "ns", Name: "ns", Verb: "get", Resource: true, Plain: true}},
		{"GET", "/api/v1/namespaces/ns/namespaces/ns", Route{GVR: namespaces, Namespace: "ns", Name: "ns", Verb: "get", Resource: true}},
		{"PUT", "/api/v1/namespaces/ns/finalize", Route{GVR: namespaces, Namespace: "ns", Name: "ns", Subresource: "finalize", Verb: "update", Resource: true}},
		{"GET", "/apis/apps/v1/deployments", Route{GVR: deployments, Verb: "list", Resource: true, Plain: true}},
		{"DELETE", "/apis/apps/v1/namespaces/ns/deployments", Route{GVR: deployments, Namespace: "ns", Verb: "deletecollection", Resource: true, Plain: true}},
		{"POST", "/apis/apps/v1/namespaces/ns/deployments", Route{GVR: deployments, Namespace: "ns", Verb: "create", Resource: true, Plain: true}},
		{"GET", "/api/v1/watch/pods", Route{GVR: pods, Verb: "watch", Resource: true}},
		{"GET", "/api/v1/watch/namespaces/ns/pods/p", Route{GVR: pods, Namespace: "ns", Name: "p", Verb: "watch", Resource: true}},
		{"GET", "/api/v1/pods/", Route{GVR: pods, Verb: "list", Resource: true}},
		{"GET", "//api/v1/pods", Route{GVR: pods, Verb: "list", Resource: true}},
		{"GET", "/api/v1/namespaces/../pods", Route{GVR: pods, Namespace: "..", Verb: "list", Resource: true}},
		{"GET", "/api/v1/%77atch/pods", Route{GVR: pods, Verb: "watch", Resource: true}},
		{"GET", "/api/v1/namespaces/n%73/pods", Route{GVR: pods, Namespace: "ns", Verb: "list", Resource: true}},
		{"GET", "/api/v1/namespaces/ns/pods/p/log/more", Route{GVR: pods, Namespace: "ns", Name: "p", Subresource: "log", Verb: "get", Resource: true}},
		{"GET", "/api/v1/watch", Route{GVR: schema.GroupVersionResource{Version: "v1"}, Verb: "list", Resource: true}},
		{"GET", "/api/v1/proxy/namespaces/ns/pods/p", Route{GVR: pods, Namespace: "ns", Name: "p", Verb: "proxy", Resource: true}},
		{"GET", "/api/v1", Route{Verb: "get"}},
		{"GET", "/apis/apps/v1", Route{Verb: "get"}},
		{"GET", "/version", Route{Verb: "get"}},
		{"GET", "/", Route{Verb: "get"}},
		{"BREW", "/coffee", Route{Verb: "other"}},
	} {
		if got := ParseRoute(tc.method, tc.path); got != tc.want {
			t.Errorf("%s %s:\n got %+v\nwant %+v", tc.method, tc.path, got, tc.want)
		}
	}
}

// No path makes ParseRoute panic. A plain path has the same meaning for kube-apiserver.
func FuzzParseRoute(f *testing.F) {
	for _, path := range []string{
		"", "/", "/api/v1/watch", "/api/v1/watch/namespaces", "/apis/a/b/namespaces/c/d/e/f", "/api//pods", "/api/v1/namespaces//pods",
		"/api/v1/pods", "/api/v1/namespaces/a", "/api/v1/namespaces/a/pods/b", "/apis/a/b/c/d", "/api/v1/namespaces/a/status", "/api/v1/proxy/pods",
		"/api/v1/namespaces/a/namespaces", "/apis/api/v1/pods", "/api/apis/v1/pods", "/api/v1/redirect/pods/a", "/api/v1/namespaces/a/proxy/b",
	} {
		f.Add("GET", path)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		rt := ParseRoute(method, path)
		if !rt.Plain {
			return
		}
		if !rt.Resource || !canonical(path) || rt.GVR.Resource == "" || rt.Subresource != "" {
			t.Errorf("%q is taken for plain: %+v", path, rt)
		}
		u, err := url.ParseRequestURI(path)
		if err != nil || u.RawQuery != "" || u.ForceQuery {
			return // no request has such a path
		}
		info, err := access.RequestInfos.NewRequestInfo(&http.Request{Method: method, URL: u})
		if err != nil {
			t.Fatal(err)
		}
		theirs := Route{
			GVR:       schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
			Namespace: info.Namespace, Name: info.Name, Subresource: info.Subresource, Verb: info.Verb, Resource: info.IsResourceRequest, Plain: true,
		}
		if rt.Verb == "options" || rt.Verb == "other" {
			// RequestInfo has no verb for it, and no cache answers such a request.
			theirs.Verb = rt.Verb
		}
		if rt != theirs {
			t.Errorf("%s %q:\n got %+v\nwant %+v", method, path, rt, theirs)
		}
	})
}

// Each value except 0 and false makes a watch. If the rest of a query is malformed, the watch is still a
// watch, as in kube-apiserver.
func TestIsWatch(t *testing.T) {
	for query, want := range map[string]bool{
		"watch=1": true, "watch=1&x=%zz": true, "x=a;b&watch=true": true, "watch": true, "watch=": true, "watch=yes": true,
		"watch=0": false, "watch=false&x=%zz": false, "watch=False": false, "x=%zz": false, "watch=%zz": false, "": false,
	} {
		if IsWatch(query) != want {
			t.Errorf("%s: %t", query, !want)
		}
	}
}
