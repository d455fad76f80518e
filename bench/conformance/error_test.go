package conformance

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// This user has no rights, and the proxy must not use its own rights to answer.
func TestForbidden(t *testing.T) {
	if *rights != "" {
		t.Skip("-rbac: a proxy that authenticates refuses itself who has no identity; what it says to those who may not, package access compares")
	}
	nobody := func(method, target, body string) request {
		return request{Method: method, Target: target, Body: body}.With("Authorization", "nonsense").With("Content-Type", "application/json")
	}
	var rows []row
	for _, c := range samples {
		for _, f := range []struct{ method, target, verb string }{
			{"", c.in("a") + "/" + c.one + "?resourceVersion=0", "get"},
			{"", c.in("a") + "/nobody", "get"},
			{"", c.in("a") + "?resourceVersion=0", "list"},
			{"", c.all() + "?limit=1", "list"},
			{"", c.all() + "?resourceVersion=0&fieldSelector=metadata.name%3D" + c.one, "list"},
			{"", c.in("a") + "?watch=true&resourceVersion=0", "watch"},
			{"", c.all() + "?watch=true", "watch"},
			{"", c.in("a") + "/" + c.one + "/status", "get"},
			{http.MethodPost, c.in("a"), "create"},
			{http.MethodPut, c.in("a") + "/" + c.one, "update"},
			{http.MethodPatch, c.in("a") + "/" + c.one, "patch"},
			{http.MethodDelete, c.in("a") + "/" + c.one, "delete"},
			{http.MethodDelete, c.in("a"), "deletecollection"},
		} {
			rows = append(rows, row{
				name: f.method + " " + f.target, request: nobody(f.method, f.target, ""), status: 403, from: upstream,
				says: `User \"system:anonymous\" cannot ` + f.verb + ` resource \"` + c.resource,
			})
		}
	}
	check(t, append(rows,
		row{name: "log", request: nobody("", pods.in("a")+"/web-1/log", ""), status: 403, from: upstream, says: `pods/log`},
		row{name: "no resource", request: nobody("", "/metrics", ""), status: 403, from: upstream, says: `cannot get path \"/metrics\"`},
		row{name: "escaped", request: nobody("", "/a%26b%3Cc%3E", ""), status: 403, from: upstream, says: "cannot get path"},
		row{name: "escaped name", request: nobody("", pods.in("a")+"/a%26b%3Cc%3E", ""), status: 403, from: upstream},
		row{name: "no such resource", request: nobody("", "/api/v1/nonsense", ""), status: 403, from: upstream},
	))
}

// If a resource does not support a method, both servers refuse the method with the same text.
func TestRefusedMethods(t *testing.T) {
	var rows []row
	for _, c := range samples {
		// The handler of custom resources checks the request before the method.
		custom := c.root == widgets.root
		for _, f := range []struct {
			method, target    string
			builtin, ofCustom int
		}{
			{http.MethodHead, c.all() + "?resourceVersion=0", 405, 200},
			{http.MethodHead, c.in("a") + "/" + c.one + "?resourceVersion=0", 405, 200},
			{http.MethodHead, c.in("a") + "/nobody?resourceVersion=0", 405, 404},
			{http.MethodPut, c.in("a"), 405, 400},
			{http.MethodPatch, c.in("a"), 405, 415},
			{http.MethodPost, c.in("a") + "/" + c.one, 405, 400},
			{http.MethodOptions, c.in("a"), 405, 405},
			{http.MethodOptions, c.in("a") + "/" + c.one, 405, 405},
			{http.MethodTrace, c.in("a"), 405, 405},
			{http.MethodGet, c.in("a") + "/" + c.one + "/nonsense", 404, 404},
			{http.MethodGet, c.root + "/nonsense?resourceVersion=0", 404, 404},
			{http.MethodGet, c.root + "/nonsense?watch=true", 404, 404},
			{http.MethodGet, c.root + "/namespaces/a/nonsense/x", 404, 404},
			{http.MethodGet, strings.Replace(c.all(), "/v1/", "/v9/", 1), 404, 404},
		} {
			r := request{Method: f.method, Target: f.target}.With("Content-Type", "application/json")
			refused := row{name: f.method + " " + f.target, request: r, status: f.builtin, from: upstream}
			if custom {
				refused.status = f.ofCustom
			}
			rows = append(rows, refused)
		}
	}
	check(t, append(rows,
		row{name: "unwatchable", request: get("/api/v1/componentstatuses?watch=true"), status: 405, from: upstream},
		row{name: "unlistable", request: get("/apis/authorization.k8s.io/v1/subjectaccessreviews?resourceVersion=0"), status: 405, from: upstream},
	))
}

// The server of an aggregated API is down.
func TestAggregatedServerDown(t *testing.T) {
	const apiservices = "/apis/apiregistration.k8s.io/v1/apiservices"
	const name = "v1.down.example.com"
	writeT(t, http.MethodPost, apiservices, `{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"`+name+`"},
		"spec":{"group":"down.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"service":{"namespace":"default","name":"down"}}}`)
	const things = "/apis/down.example.com/v1/things"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), cluster.Limit)
		defer cancel()
		_, err := write(ctx, http.MethodDelete, apiservices+"/"+name, "")
		if err == nil {
			// Otherwise discovery may still list the API for other tests.
			_, err = eventually(ctx, apiserver, get(things), 404)
		}
		if err != nil {
			t.Error(err)
		}
	})
	await(t, get(things), 503)
	check(t, []row{
		{name: "list", request: get(things + "?resourceVersion=0"), status: 503, from: upstream, says: "service unavailable"},
		{name: "most recent", request: get(things), status: 503, from: upstream},
		{name: "watch", request: get(things + "?watch=true&resourceVersion=0"), status: 503, from: upstream},
		{name: "get", request: get("/apis/down.example.com/v1/namespaces/a/things/x?resourceVersion=0"), status: 503, from: upstream},
		{name: "discovery", request: get("/apis/down.example.com/v1"), status: 503, from: upstream},
	})
}
