package exchange

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// Route is the meaning of a method and a path.
type Route struct {
	GVR         schema.GroupVersionResource
	Namespace   string
	Name        string
	Subresource string
	Verb        string
	// View is the view in whose path the request came, or nil. The other fields, and the request's
	// path, are those of the same request without a view.
	View *View
	// Resource is false for paths without a resource, such as /version.
	Resource bool
	// Plain is true for the canonical path of a collection or an object: no empty or escaped
	// segments, nothing after the name, no namespace in a namespace, no verb such as watch. The
	// cache answers plain paths only.
	Plain bool
}

// IsNamespace reports whether the path is /api/v1/namespaces/NAME. Then the namespace is NAME, too.
func (rt *Route) IsNamespace() bool {
	return rt.GVR.Group == "" && rt.GVR.Resource == "namespaces" && rt.Name == rt.Namespace
}

var verbs = map[string]string{
	"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch",
	"DELETE": "delete",
}

// ParseRoute parses a method and an escaped path. RequestInfo is not given the method, because it
// would then decode the query of a get. IsWatch reads the query later.
func ParseRoute(method, path string) Route {
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		unescaped = path
	}
	// NewRequestInfo fails for paths that end at watch or proxy. Such paths are not plain.
	info, _ := access.RequestInfos.NewRequestInfo(
		&http.Request{URL: &url.URL{Path: beginning(unescaped)}},
	)
	rt := Route{
		GVR: schema.GroupVersionResource{
			Group:    info.APIGroup,
			Version:  info.APIVersion,
			Resource: info.Resource,
		},
		Namespace: info.Namespace, Name: info.Name, Subresource: info.Subresource,
		// Metrics keep the verb. The copy does not keep the path in memory.
		Verb: strings.Clone(info.Verb), Resource: info.IsResourceRequest,
	}
	// Otherwise the path names the verb: watch, proxy.
	if rt.Verb == "" || method == http.MethodOptions {
		rt.Verb = verbOf(method, &rt)
	}
	segments := 2 + len(info.Parts) // number of segments in the canonical path
	if rt.GVR.Group != "" {
		segments++
	}
	if rt.Namespace != "" && rt.GVR.Resource != "namespaces" {
		segments += 2
	}
	rt.Plain = rt.Resource && rt.Subresource == "" && strings.Count(path, "/") == segments &&
		canonical(path)
	return rt
}

// beginning returns the first segments of a path. Only nine have a meaning, as in
// /apis/GROUP/VERSION/watch/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE, so the path of an
// unknown client is not split into thousands.
func beginning(path string) string {
	const most = 16
	path = strings.Trim(path, "/")
	for i, n := 0, 0; i < len(path); i++ {
		if path[i] == '/' {
			n++
		}
		if n == most {
			return path[:i]
		}
	}
	return path
}

// verbOf returns a verb as in kube-apiserver. Clients cannot invent verbs.
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

// IsWatch reports whether a query makes a list a watch. If a query is malformed, only its valid
// part counts, as in kube-apiserver.
func IsWatch(query string) bool {
	value, ok := wire.Parameter(query, "watch")
	return ok && ParseBool(value)
}

// ParseBool parses like apimachinery: every value except "0" and "false" is true, even "".
func ParseBool(s string) bool { return s != "0" && !strings.EqualFold(s, "false") }

// canonical reports whether a path has no empty, relative or escaped segments, and no bytes that
// need escaping. The paths of all objects are canonical.
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
