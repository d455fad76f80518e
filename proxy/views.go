package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// enterView makes a request in the path of a view the same request without the view, before any
// check. So its sender needs the same rights as always.
func enterView(views map[string]*exchange.View, req *exchange.Request) {
	if len(views) == 0 {
		return
	}
	rest, ok := strings.CutPrefix(req.Path, exchange.ViewPrefix)
	if !ok {
		return
	}
	name, path, _ := strings.Cut(rest, "/")
	view, ok := views[name]
	if !ok {
		return
	}
	req.Path = "/" + path
	req.Target = req.Path + req.Target[len(exchange.ViewPrefix+rest):]
	req.Route = exchange.ParseRoute(req.Method, req.Path)
	req.Route.View = view
}

// refuseInView refuses what a view cannot do, and requests for a view that does not exist.
func refuseInView(views map[string]*exchange.View, req *exchange.Request) *exchange.Response {
	if req.Route.View == nil {
		if len(views) > 0 && strings.HasPrefix(req.Path, exchange.ViewPrefix) {
			return req.Refuse(exchange.Failure(http.StatusNotFound, metav1.StatusReasonNotFound,
				"watchproxy has no such view: see views in its configuration"))
		}
		return nil
	}
	fields := req.Route.View.Of(req.Route.GVR.GroupResource())
	switch {
	case fields == nil || !req.Route.Resource:
		return nil
	case writesObjects(req.Route):
		refusal := req.Refuse(exchange.Failure(
			http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			fmt.Sprintf("%s of %s is not allowed in the view %s, which shows only a part of each "+
				"object: use the address without %s", req.Route.Verb, req.Route.GVR.Resource,
				req.Route.View.Name, exchange.ViewPrefix+req.Route.View.Name)))
		refusal.Header.Set("Allow", "GET")
		return refusal
	case cuts(req) == nil:
		return nil
	case req.WantsUpgrade():
		return req.Refuse(exchange.BadRequest("the view " + req.Route.View.Name +
			" answers over HTTP alone: leave out the header Upgrade"))
	}
	if _, ok := wire.AcceptsJSON(req.Header.Get("Accept")); !ok {
		return req.Refuse(exchange.Failure(
			http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			fmt.Sprintf("the view %s may have %s only in JSON: accept application/json, too",
				req.Route.View.Name, req.Route.GVR.Resource)))
	}
	return nil
}

// acceptJSON makes a request for cut objects accept plain JSON alone before it is forwarded. A
// protobuf message begins with its length, so it would have to be whole before its first byte is
// written.
func acceptJSON(req *exchange.Request) {
	if cuts(req) == nil {
		return
	}
	delete(req.Header, "Accept-Encoding")
	if accept, _ := wire.AcceptsJSON(req.Header.Get("Accept")); accept != "" {
		req.Header["Accept"] = []string{accept}
	}
}

// writesObjects reports whether a request might write an object that its sender has read only in
// part. Subresources that are created, such as bindings, evictions and exec, have bodies of their
// own. Reviews are questions, and a proxy subresource leads elsewhere.
func writesObjects(rt exchange.Route) bool {
	if rt.Subresource == "proxy" || rt.GVR.Group == "authorization.k8s.io" ||
		rt.GVR.Group == "authentication.k8s.io" {
		return false
	}
	switch rt.Verb {
	case "update", "patch":
		return true
	case "create", "delete", "deletecollection":
		return rt.Subresource == ""
	}
	return false
}

// showsObject are the subresources whose answers are the object itself.
var showsObject = []string{"", "status", "resize", "ephemeralcontainers", "approval"}

// cuts returns the fields that stay of the objects in the answer to a request; nil for all.
func cuts(req *exchange.Request) *projection.Projection {
	if req.Method != http.MethodGet || !req.Route.Resource ||
		!slices.Contains(showsObject, req.Route.Subresource) {
		return nil
	}
	return req.Route.View.Of(req.Route.GVR.GroupResource())
}

// cutForwarded cuts the objects in an answer of upstream. It fails if it does not understand the
// answer.
func cutForwarded(req *exchange.Request, resp *exchange.Response) *exchange.Response {
	fields := cuts(req)
	if fields == nil || resp.Source != exchange.FromUpstream || resp.Status != http.StatusOK {
		return resp
	}
	shape := map[string]projection.Shape{
		"list":  projection.List,
		"watch": projection.Events,
	}[req.Route.Verb]
	mediaType, encoding := resp.Header.Get("Content-Type"), resp.Header.Get("Content-Encoding")
	if !strings.HasPrefix(mediaType, "application/json") || encoding != "" {
		return failCut(req, resp)
	}
	if from, long := resp.Body.(*exchange.Reader); long {
		from.ReadCloser, from.Length = fields.Reader(from.ReadCloser, shape), -1
		return resp
	}
	cut, err := fields.AppendAnswer(nil, resp.Bytes(), shape)
	if err != nil {
		return failCut(req, resp)
	}
	resp.Body = exchange.Bytes(cut)
	return resp
}

func failCut(req *exchange.Request, resp *exchange.Response) *exchange.Response {
	resp.Abandon()
	return req.Refuse(exchange.BadGateway("the view " + req.Route.View.Name +
		" cannot show upstream's answer, which is not JSON"))
}
