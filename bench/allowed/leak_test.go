package allowed

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// A request in a view that the view does not narrow gets the apiserver's answer.
func TestLeaks(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 2)
	a, b := s.names[0], s.names[1]
	one := configmaps.path(a) + "/" + s.write(a)
	for _, r := range []resource{pods, secrets, widgets} {
		for _, n := range s.names {
			s.must(w.create(t.Context(), r, n, object(r, "x-"+s.marks[n], "web", s.marks[n])))
		}
	}
	leak, nothing, deputy := user("leak"), user("nothing"), user("deputy")
	s.must(w.server.Allow(t.Context(), "", "deputies", cluster.Users("deputy"), rbacv1.PolicyRule{
		APIGroups: []string{""}, Verbs: []string{"impersonate"}, Resources: []string{"users"}, ResourceNames: []string{"leak"},
	}))
	s.allow(leak, "ordinary", a)
	as := func(c caller, user string) caller {
		c.name, c.header = c.name+" as "+user, http.Header{"Impersonate-User": {user}}
		return c
	}
	anonymous, wrong := caller{name: "anonymous"}, caller{name: "wrong", token: "wrong"}
	may := map[string][]string{leak.name: {a}, as(deputy, "leak").name: {a}}
	callers := []caller{leak, nothing, deputy, anonymous, wrong, as(deputy, "leak"), as(deputy, "admin"), as(deputy, "nothing"), as(leak, "deputy"), as(nothing, "leak")}

	t.Run("as upstream", func(t *testing.T) {
		targets := []string{
			configmaps.path(a), configmaps.path(b), one, one + "?resourceVersion=0", configmaps.path(b) + "/none",
			configmaps.path(a) + "?watch=true&timeoutSeconds=1&resourceVersion=0&fieldSelector=metadata.name%3Dnone",
			configmaps.path(b) + "?watch=true&timeoutSeconds=1", secrets.path(""), secrets.path("") + "?resourceVersion=0", secrets.path(a),
			"/api/v1/nodes", "/api/v1/nodes?watch=true&timeoutSeconds=1", "/apis/rbac.authorization.k8s.io/v1/clusterroles?resourceVersion=0",
			"/apis/rbac.authorization.k8s.io/v1/clusterroles", namespaces.path("") + "/" + a, namespaces.path("") + "/" + b,
			configmaps.path("") + "?unknown=1", configmaps.path("") + "?" + shardSelector, configmaps.path(a) + "?" + shardSelector,
			"/api/v1/watch/configmaps?timeoutSeconds=1", pods.path(a) + "/x-" + s.marks[a] + "/log", "/api/v1/persistentvolumes",
		}
		var tasks []func()
		for _, c := range callers {
			for _, target := range targets {
				tasks = append(tasks, func() {
					want, err := get(t.Context(), w.api, c, cluster.Get(target))
					if err != nil {
						t.Error(err)
						return
					}
					for _, view := range []string{"mine", "cut"} {
						got := s.ask(c, cluster.Get("/views/"+view+target), append(may[c.name], named(target, s.names)...)...)
						if got.Status != want.Status {
							t.Errorf("%s: /views/%s%s: %d instead of %d: %.300s", c.name, view, target, got.Status, want.Status, got.Body)
						}
					}
				})
			}
		}
		together(tasks)
	})
	t.Run("narrowed", func(t *testing.T) {
		for _, c := range callers {
			for _, r := range []resource{configmaps, pods, widgets, namespaces} {
				for _, query := range []string{"", "?resourceVersion=0", "?limit=1", "?labelSelector=app%3Dweb"} {
					got := s.ask(c, cluster.Get("/views/mine"+r.path("")+query), may[c.name]...)
					want := map[string]int{anonymous.name: 403, wrong.name: 401, "leak as deputy": 403, "nothing as leak": 403, "deputy as admin": 403, "deputy as nothing": 403}[c.name]
					if want == 0 {
						want = http.StatusOK
					}
					if got.Status != want {
						t.Errorf("%s: %s%s: %d instead of %d: %.300s", c.name, r.path(""), query, got.Status, want, got.Body)
					}
					if got.Status == http.StatusOK {
						s.checkItems(c, r, got, len(may[c.name]) > 0 && r == configmaps)
					}
				}
			}
		}
	})
	t.Run("unusual", func(t *testing.T) {
		var shown atomic.Int64
		var tasks []func()
		for _, c := range []caller{leak, nothing, anonymous, as(deputy, "leak")} {
			for _, view := range []string{"mine", "cut"} {
				for _, r := range unusual("/views/"+view, one, s.URL) {
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
		together(tasks)
		const least = 20
		if shown.Load() < least {
			t.Errorf("%d answers of %d show anything: the test does not test", shown.Load(), len(tasks))
		}
	})
	t.Run("writes", func(t *testing.T) {
		for _, c := range []caller{leak, nothing} {
			for _, n := range s.names {
				text, err := json.Marshal(object(configmaps, "new-"+s.marks[n], "web", s.marks[n]).Object)
				s.must(err)
				allowed := c.name == leak.name && n == a
				for _, r := range []cluster.Request{
					{Method: http.MethodPost, Target: "/views/mine" + configmaps.path(n), Body: string(text)},
					{Method: http.MethodDelete, Target: "/views/mine" + configmaps.path(n) + "/new-" + s.marks[n]},
				} {
					got := s.ask(c, r.With("Content-Type", inJSON), n)
					if (got.Status/100 == 2) != allowed || !allowed && got.Status != http.StatusForbidden {
						t.Errorf("%s: %s %s: %d %.300s", c.name, r.Method, r.Target, got.Status, got.Body)
					}
				}
			}
		}
		for _, r := range []cluster.Request{{Method: http.MethodDelete, Target: mine}, {Method: http.MethodPost, Target: mine, Body: "{}"}} {
			if got := s.ask(leak, r.With("Content-Type", inJSON), a); got.Status/100 != 4 {
				t.Errorf("%s in all namespaces: %d %.300s", r.Method, got.Status, got.Body)
			}
		}
	})
}

// together runs tasks that mostly wait.
func together(tasks []func()) {
	const atOnce = 64
	_ = workload.Parallel(context.Background(), len(tasks), atOnce, func(_ context.Context, i int) error {
		tasks[i]()
		return nil
	})
}

// checkItems checks that a list has objects or none.
func (s *team) checkItems(c caller, r resource, a cluster.Answer, some bool) {
	s.t.Helper()
	l, err := decode(a)
	s.must(err)
	if (len(l.items) > 0) != some {
		s.t.Errorf("%s gets %d %s", c.name, len(l.items), r.Resource)
	}
}

// shardSelector is a parameter that the proxy leaves to the apiserver.
var shardSelector = "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')")

// named returns the namespaces whose marks a target has. An answer may repeat them.
func named(target string, names []string) (in []string) {
	for _, n := range names {
		if strings.Contains(target, n) {
			in = append(in, n)
		}
	}
	return in
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
	return append(
		all,
		cluster.Get(collection).With("Origin", origin),
		cluster.Get(collection).With("Cache-Control", "max-age=0"),
		cluster.Get(collection).With("X-HTTP-Method-Override", "PUT"),
		cluster.Get(collection).With("Impersonate-Group", "system:masters"),
		cluster.Get(collection).With("X-Remote-User", "admin"),
		cluster.Get(collection).With("Range", "bytes=0-10"),
		cluster.Request{Method: http.MethodHead, Target: collection},
		cluster.Request{Method: http.MethodOptions, Target: collection},
		cluster.Request{Method: http.MethodGet, Target: collection, Body: "{}"},
		cluster.Request{Method: http.MethodPatch, Target: collection, Body: "{}"},
	)
}
