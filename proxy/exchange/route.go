package exchange

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// RequestInfos reads paths as kube-apiserver does.
var RequestInfos = apirequest.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// Route is what a method and a path mean.
type Route struct {
	GVR         schema.GroupVersionResource
	Namespace   string
	Name        string
	Subresource string
	Verb        string
	// resource is false for paths that name no resource, such as /version.
	Resource bool
	// plain tells that the path is the canonical one of a collection or an object: no empty
	// segments, no escapes, nothing behind the name, no namespace in a namespace, no verb. Only
	// such paths are answered from the cache; upstream interprets all others.
	Plain bool
}

var verbs = map[string]string{
	"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete",
}

// ParseRoute reads a method and an escaped path. RequestInfo gets no method: it would decode the
// query of a get, which isWatch reads later.
func ParseRoute(method, path string) Route {
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		unescaped = path
	}
	// An error means that a path ends at watch or proxy, which is not plain.
	info, _ := RequestInfos.NewRequestInfo(&http.Request{URL: &url.URL{Path: unescaped}})
	rt := Route{
		GVR:       schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
		Namespace: info.Namespace, Name: info.Name, Subresource: info.Subresource,
		Verb: info.Verb, Resource: info.IsResourceRequest,
	}
	if rt.Verb == "" { // else the path names it: watch, proxy
		rt.Verb = verbOf(method, &rt)
	}
	segments := 2 + len(info.Parts) // of the canonical path
	if rt.GVR.Group != "" {
		segments++
	}
	if rt.Namespace != "" && rt.GVR.Resource != "namespaces" {
		segments += 2
	}
	rt.Plain = rt.Resource && rt.Subresource == "" && strings.Count(path, "/") == segments && canonical(path)
	return rt
}

// verbOf names what a method does, as kube-apiserver names it. Clients cannot invent verbs.
func verbOf(method string, rt *Route) string {
	verb, known := verbs[method]
	switch {
	case !known && method != http.MethodOptions:
		return "other"
	case !known || !rt.Resource:
		return strings.ToLower(method)
	case rt.Name == "" && verb == "get":
		return "list"
	case rt.Name == "" && verb == "delete":
		return "deletecollection"
	}
	return verb
}

// IsWatch tells a watch from a list. Of a malformed query counts what can be read,
// as for upstream.
func IsWatch(query string) bool {
	values, _ := url.ParseQuery(query)
	return len(values["watch"]) > 0 && ParseBool(values["watch"][0])
}

// ParseBool is apimachinery's reading of a query parameter: everything but a
// written no is yes, the empty value included.
func ParseBool(s string) bool { return s != "0" && !strings.EqualFold(s, "false") }

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
