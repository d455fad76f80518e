package proxy

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// route is what a path means, after kube-apiserver's RequestInfo
// (semantics: k8s.io/apiserver/pkg/endpoints/request).
type route struct {
	gvr         schema.GroupVersionResource
	namespace   string
	name        string
	subresource string
	verb        string
	// resource is false for paths that name no resource, such as /version.
	resource bool
	// plain tells that the path is written in the one canonical way: no empty
	// segments, no escapes, nothing behind the name, no namespace in a
	// namespace. Only such paths are answered from the cache; others are
	// upstream's to understand.
	plain bool
}

var verbs = map[string]string{
	"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete",
}

// parseRoute reads a method and an escaped path. Whether a get without a name is
// a watch stands in the query and is decided later.
func parseRoute(method, path string) route {
	written := path
	if unescaped, err := url.PathUnescape(path); err == nil {
		path = unescaped
	}
	segments := strings.Split(strings.Trim(path, "/"), "/")
	rt := route{verb: "other"}
	if _, ok := verbs[method]; ok || method == "OPTIONS" {
		rt.verb = strings.ToLower(method)
	}
	switch {
	case segments[0] == "api" && len(segments) >= 3:
		rt.gvr.Version, segments = segments[1], segments[2:]
	case segments[0] == "apis" && len(segments) >= 4:
		rt.gvr.Group, rt.gvr.Version, segments = segments[1], segments[2], segments[3:]
	default:
		return rt
	}
	rt.resource = true
	if verb, ok := verbs[method]; ok {
		rt.verb = verb
	}
	legacyWatch, legacyProxy := segments[0] == "watch", segments[0] == "proxy"
	if legacyWatch {
		rt.verb = "watch"
		segments = append(segments[1:], "")[:max(len(segments)-1, 1)]
	}
	nested := false
	if segments[0] == "namespaces" && len(segments) > 1 {
		rt.namespace = segments[1]
		// A namespace's own subresources are no resources inside it.
		if len(segments) > 2 && segments[2] != "status" && segments[2] != "finalize" {
			segments = segments[2:]
			nested = segments[0] == "namespaces"
		}
	}
	rt.gvr.Resource = segments[0]
	if len(segments) > 1 {
		rt.name = segments[1]
	}
	if len(segments) > 2 {
		rt.subresource = segments[2]
	}
	if rt.name == "" && !legacyWatch {
		switch rt.verb {
		case "get":
			rt.verb = "list"
		case "delete":
			rt.verb = "deletecollection"
		}
	}
	rt.plain = !legacyWatch && !legacyProxy && !nested && len(segments) <= 2 && rt.subresource == "" && canonical(written)
	return rt
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
