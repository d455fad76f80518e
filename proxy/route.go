package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// requestInfos reads paths as kube-apiserver does.
var requestInfos = apirequest.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// route is what a method and a path mean.
type route struct {
	gvr         schema.GroupVersionResource
	namespace   string
	name        string
	subresource string
	verb        string
	// resource is false for paths that name no resource, such as /version.
	resource bool
	// plain tells that the path is the canonical one of a collection or an object: no empty
	// segments, no escapes, nothing behind the name, no namespace in a namespace, no verb. Only
	// such paths are answered from the cache; upstream interprets all others.
	plain bool
}

var verbs = map[string]string{
	"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete",
}

// parseRoute reads a method and an escaped path. RequestInfo gets no method: it would decode the
// query of a get, which isWatch reads later.
func parseRoute(method, path string) route {
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		unescaped = path
	}
	// An error means that a path ends at watch or proxy, which is not plain.
	info, _ := requestInfos.NewRequestInfo(&http.Request{URL: &url.URL{Path: unescaped}})
	rt := route{
		gvr:       schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
		namespace: info.Namespace, name: info.Name, subresource: info.Subresource,
		verb: info.Verb, resource: info.IsResourceRequest,
	}
	if rt.verb == "" { // else the path names it: watch, proxy
		rt.verb = verbOf(method, &rt)
	}
	segments := 2 + len(info.Parts) // of the canonical path
	if rt.gvr.Group != "" {
		segments++
	}
	if rt.namespace != "" && rt.gvr.Resource != "namespaces" {
		segments += 2
	}
	rt.plain = rt.resource && rt.subresource == "" && strings.Count(path, "/") == segments && canonical(path)
	return rt
}

// verbOf names what a method does, as kube-apiserver names it. Clients cannot invent verbs.
func verbOf(method string, rt *route) string {
	verb, known := verbs[method]
	switch {
	case !known && method != http.MethodOptions:
		return "other"
	case !known || !rt.resource:
		return strings.ToLower(method)
	case rt.name == "" && verb == "get":
		return "list"
	case rt.name == "" && verb == "delete":
		return "deletecollection"
	}
	return verb
}

// isWatch tells a watch from a list. Of a malformed query counts what can be read,
// as for upstream.
func isWatch(query string) bool {
	values, _ := url.ParseQuery(query)
	return len(values["watch"]) > 0 && parseBool(values["watch"][0])
}

// canonical tells whether a path has no empty, relative or escaped segments, nor bytes
// that should be escaped: no name has any.
func canonical(path string) bool {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "%;\\") {
		return false
	}
	for i := range len(path) {
		if path[i] <= ' ' || path[i] >= utf8.RuneSelf {
			return false
		}
	}
	for segment := range strings.SplitSeq(path[1:], "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return true
}
