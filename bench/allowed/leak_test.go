package allowed

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// A request in a view that the view does not narrow gets the apiserver's answer. None shows more than its
// sender may read.
func TestLeaks(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 2)
	a, b := s.names[0], s.names[1]
	one := strings.Replace(s.write(a), a, configmaps.path(a), 1)
	for _, r := range []resource{pods, secrets, widgets} {
		for _, n := range s.names {
			s.creates(r, n, "x-"+s.marks[n])
		}
	}
	leak, nothing, deputy, anonymous, wrong := user("leak"), user("nothing"), user("deputy"), caller{name: "anonymous"}, caller{name: "wrong", token: "wrong"}
	s.must(w.server.Allow(t.Context(), "", "deputies", cluster.Users("deputy"), impersonating("leak")))
	s.allow(leak, "ordinary", a)
	// The callers with the status of a list of all namespaces.
	statuses := map[caller]int{
		leak: 200, nothing: 200, deputy: 200, anonymous: 403, wrong: 401, deputy.acting("leak"): 200, deputy.acting("admin"): 403,
		deputy.acting("nothing"): 403, leak.acting("deputy"): 403, nothing.acting("leak"): 403,
	}
	may := map[string][]string{leak.name: {a}, deputy.acting("leak").name: {a}}
	var tasks []func()
	each := func(do func(c caller)) {
		for c := range statuses {
			tasks = append(tasks, func() { do(c) })
		}
	}
	for _, target := range []string{
		configmaps.path(a), configmaps.path(b), one, one + "?resourceVersion=0", configmaps.path(b) + "/none",
		configmaps.path(a) + "?watch=true&timeoutSeconds=1&resourceVersion=0&fieldSelector=metadata.name%3Dnone",
		configmaps.path(b) + "?watch=true&timeoutSeconds=1", secrets.path(""), secrets.path("") + "?resourceVersion=0", secrets.path(a),
		"/api/v1/nodes", "/api/v1/nodes?watch=true&timeoutSeconds=1", "/apis/rbac.authorization.k8s.io/v1/clusterroles?resourceVersion=0",
		namespaces.path("") + "/" + a, namespaces.path("") + "/" + b, configmaps.path("") + "?unknown=1", configmaps.path("") + "?" + shardSelector,
		configmaps.path(a) + "?" + shardSelector, "/api/v1/watch/configmaps?timeoutSeconds=1", pods.path(a) + "/x-" + s.marks[a] + "/log", "/api/v1/persistentvolumes",
	} {
		each(func(c caller) {
			want, err := get(t.Context(), w.api, c, cluster.Get(target))
			if err != nil {
				t.Error(err)
			}
			for _, view := range []string{"mine", "cut"} {
				s.expect(want.Status, c, cluster.Get("/views/"+view+target), append(may[c.name], named(target, s.names)...)...)
			}
		})
	}
	for _, r := range []resource{configmaps, pods, widgets, namespaces} {
		for _, query := range []string{"", "?resourceVersion=0", "?limit=1", "?labelSelector=app%3Dweb"} {
			each(func(c caller) {
				got := s.expect(statuses[c], c, cluster.Get("/views/mine"+r.path("")+query), may[c.name]...)
				if l, err := decode(got); got.Status == http.StatusOK && (err != nil || (len(l.items) > 0) != (may[c.name] != nil && r == configmaps)) {
					t.Errorf("%s gets %d %s: %v", c.name, len(l.items), r.Resource, err)
				}
			})
		}
	}
	var shown atomic.Int64
	for _, view := range []string{"mine", "cut"} {
		for _, r := range unusual("/views/"+view, one, s.URL) {
			for _, c := range []caller{leak, nothing, anonymous, deputy.acting("leak")} {
				tasks = append(tasks, func() {
					got := s.ask(c, r, append(may[c.name], named(r.Target, s.names)...)...)
					later := got.Status == http.StatusServiceUnavailable && strings.Contains(string(got.Body), "cannot be shown now") // a Table's rows have no history yet
					if got.Status >= http.StatusInternalServerError && got.Status != http.StatusGatewayTimeout && !later {
						t.Errorf("%s: %s %s %v: %d %.900s", c.name, r.Method, r.Target, r.Header, got.Status, got.Body)
					}
					if len(w.marks.shown(got)) > 0 {
						shown.Add(1)
					}
				})
			}
		}
	}
	const atOnce, least = 64, 20
	_ = workload.Parallel(context.Background(), len(tasks), atOnce, func(_ context.Context, i int) error {
		tasks[i]()
		return nil
	})
	if shown.Load() < least {
		t.Errorf("%d unusual answers show anything: the test does not test", shown.Load())
	}
	for c, statuses := range map[caller][]int{leak: {http.StatusCreated, http.StatusOK}, nothing: {http.StatusForbidden, http.StatusForbidden}} {
		body := `{"metadata":{"name":"new"}}`
		s.expect(statuses[0], c, cluster.Request{Method: http.MethodPost, Target: "/views/mine" + configmaps.path(a), Body: body}.With("Content-Type", inJSON), a)
		s.expect(statuses[1], c, cluster.Request{Method: http.MethodDelete, Target: "/views/mine" + configmaps.path(a) + "/new"}, a)
	}
	s.expect(http.StatusForbidden, leak, cluster.Request{Method: http.MethodDelete, Target: mine}, a)
	s.expect(http.StatusForbidden, leak, cluster.Request{Method: http.MethodPost, Target: mine, Body: "{}"}.With("Content-Type", inJSON), a)
}

// shardSelector is a parameter that the proxy leaves to the apiserver.
var shardSelector = "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')")

// named returns the namespaces whose marks a target has. An answer may repeat them.
func named(target string, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.Contains(target, n) })
}

// unusual returns requests that are not plain lists and watches.
func unusual(view, one, origin string) (all []cluster.Request) {
	collection := view + configmaps.path("")
	for _, query := range []string{
		"limit=-1", "limit=x", "resourceVersion=x", "resourceVersion=99999999999&timeoutSeconds=1", "resourceVersion=1", "resourceVersion=1&resourceVersionMatch=Exact",
		"resourceVersionMatch=Exact", "sendInitialEvents=true", "continue=x", "continue=.", "continue=e30", "limit=1&continue=e30.AAAA",
		"labelSelector=%25%25", "fieldSelector=data.text%3Dx", "fieldSelector=metadata.namespace%3D" + url.QueryEscape("a/../b"), "unknown=1",
		"watch=1&timeoutSeconds=1&resourceVersion=1", "watch=true&timeoutSeconds=1&resourceVersion=99999999999", "watch=true&limit=1&timeoutSeconds=1",
		"watch=true&timeoutSeconds=1&sendInitialEvents=true", "watch=false", "watch=true&watch=false&timeoutSeconds=1", "timeoutSeconds=1",
	} {
		all = append(all, cluster.Get(collection+"?"+query))
	}
	for _, target := range []string{
		collection + "/", view + "/" + configmaps.path(""), view + "//api/v1/configmaps", view + "/api/v1/%63onfigmaps", view + "/api/v1/namespaces//configmaps",
		view + "/api/v1/namespaces/%20/configmaps", view + "/api/v1/namespaces/*/configmaps", view + "/api/v1/watch/configmaps?timeoutSeconds=1",
		view + "/api/v1/CONFIGMAPS", view + "/views/mine/api/v1/configmaps", view + "/../mine/api/v1/configmaps", view + one, view + one + "/status", view, view + "/",
		view + "/api/v1", view + "/apis", view + "/openapi/v2", view + "/metrics",
	} {
		all = append(all, cluster.Get(target))
	}
	for _, accept := range []string{"application/*", "text/html", "", "application/yaml", inTable, inJSON + partial, "application/json;as=Table;g=meta.k8s.io;v=v1beta1", "application/cbor", "*/*"} {
		all = append(all, cluster.Get(collection).With("Accept", accept), cluster.Get(collection+"?watch=true&timeoutSeconds=1&resourceVersion=0").With("Accept", accept))
	}
	for _, header := range [][2]string{
		{"Origin", origin}, {"Cache-Control", "max-age=0"}, {"X-Http-Method-Override", "PUT"}, {"Impersonate-Group", "system:masters"}, {"X-Remote-User", "admin"}, {"Range", "bytes=0-10"},
	} {
		all = append(all, cluster.Get(collection).With(header[0], header[1]))
	}
	for method, body := range map[string]string{http.MethodHead: "", http.MethodOptions: "", http.MethodGet: "{}", http.MethodPatch: "{}"} {
		all = append(all, cluster.Request{Method: method, Target: collection, Body: body})
	}
	return all
}
