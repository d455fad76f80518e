package proxy

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// enterView makes a request in the path of a view the same request without the view, before any
// check. So its sender needs the same rights as always.
func enterView(views map[string]*exchange.View, req *exchange.Request, rt *exchange.Route) {
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
	req.View, req.Path = view, "/"+path
	req.Target = req.Path + req.Target[len(exchange.ViewPrefix+rest):]
	*rt = exchange.ParseRoute(req.Method, req.Path)
}

// refuseInView refuses what a view cannot do, and requests for a view that does not exist.
func refuseInView(views map[string]*exchange.View, req *exchange.Request, rt *exchange.Route) *exchange.Response {
	if req.View == nil {
		if len(views) > 0 && strings.HasPrefix(req.Path, exchange.ViewPrefix) {
			return req.Fail(exchange.Failure(http.StatusNotFound, metav1.StatusReasonNotFound,
				"watchproxy has no such view: see views in its configuration"), exchange.FromProxy)
		}
		return nil
	}
	fields := req.View.Of(rt.GVR.GroupResource())
	switch {
	case fields == nil || !rt.Resource:
		return nil
	case writesObjects(rt):
		refusal := req.Fail(exchange.Failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			rt.Verb+" of "+rt.GVR.Resource+" is not allowed in the view "+req.View.Name+", which shows only a part of each object: use the address without "+
				exchange.ViewPrefix+req.View.Name), exchange.FromProxy)
		refusal.Header.Set("Allow", "GET")
		return refusal
	case cuts(req, rt) == nil:
		return nil
	case req.WantsUpgrade():
		return req.Fail(exchange.BadRequest("the view "+req.View.Name+" answers over HTTP alone: leave out the header Upgrade"), exchange.FromProxy)
	}
	if _, ok := wire.AcceptsJSON(req.Header.Get("Accept")); !ok {
		return req.Fail(exchange.Failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"the view "+req.View.Name+" may have "+rt.GVR.Resource+" only in JSON: accept application/json, too"), exchange.FromProxy)
	}
	return nil
}

// acceptJSON makes a request for cut objects accept JSON alone before it is forwarded. A protobuf
// message begins with its length, so it would have to be whole before its first byte is written.
func acceptJSON(req *exchange.Request, rt *exchange.Route) {
	if cuts(req, rt) == nil {
		return
	}
	if accept, _ := wire.AcceptsJSON(req.Header.Get("Accept")); accept != "" {
		req.Header["Accept"] = []string{accept}
	}
}

// writesObjects reports whether a request might write an object that its sender has read only in
// part. Subresources that are created, such as bindings, evictions and exec, have bodies of their
// own. Reviews are questions, and a proxy subresource leads elsewhere.
func writesObjects(rt *exchange.Route) bool {
	if rt.Subresource == "proxy" || rt.GVR.Group == "authorization.k8s.io" || rt.GVR.Group == "authentication.k8s.io" {
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
func cuts(req *exchange.Request, rt *exchange.Route) *projection.Projection {
	if req.Method != http.MethodGet || !rt.Resource || !slices.Contains(showsObject, rt.Subresource) {
		return nil
	}
	return req.View.Of(rt.GVR.GroupResource())
}

// cutForwarded cuts the objects in an answer of upstream. It fails if it does not understand the
// answer.
func cutForwarded(req *exchange.Request, rt *exchange.Route, resp *exchange.Response) *exchange.Response {
	fields := cuts(req, rt)
	if fields == nil || resp.Source != exchange.FromUpstream || resp.Status != http.StatusOK {
		return resp
	}
	shape := map[string]projection.Shape{"list": projection.List, "watch": projection.Events}[rt.Verb]
	encoding := resp.Header.Get("Content-Encoding")
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") || encoding != "" && encoding != "gzip" {
		return failCut(req, resp)
	}
	resp.Header.Del("Content-Encoding")
	from, long := resp.Body.(*exchange.Reader)
	if encoding == "gzip" {
		if !long { // short, but may be long once it is decompressed
			from = &exchange.Reader{ReadCloser: io.NopCloser(bytes.NewReader(resp.Bytes()))}
			resp.Body, long = from, true
		}
		from.ReadCloser = &unzipped{ReadCloser: from.ReadCloser}
	}
	if long {
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
	return req.Fail(exchange.Failure(http.StatusBadGateway, metav1.StatusReasonInternalError,
		"the view "+req.View.Name+" cannot show upstream's answer, which is not JSON"), exchange.FromProxy)
}

type unzipped struct {
	io.ReadCloser
	from *gzip.Reader
}

// Read implements io.Reader.
func (u *unzipped) Read(p []byte) (int, error) {
	if u.from == nil {
		var err error
		if u.from, err = gzip.NewReader(u.ReadCloser); err != nil {
			return 0, err
		}
	}
	return u.from.Read(p)
}
