package shards

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const allowedViews = `
authentication: {webhook: {cacheTTL: 1h}}
authorization: {webhook: {cacheAuthorizedTTL: 1h, cacheUnauthorizedTTL: 1h}}
views:
- {name: mine, namespaces: allowed, shards: always}
`

// A view of the allowed namespaces shows the shard of each of them. The references are lists of the
// namespaces, which the same user gets from the apiserver with the feature gate.
func TestAllowed(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	random := rand.New(rand.NewPCG(cluster.Seed(), 6))
	script := w.newScript(t, configmaps, random)
	for range 20 {
		script.change()
	}
	watchable := script.namespaces[:2] // the first one gets the last objects
	may := []string{w.seeded.namespaces[1], w.seeded.namespaces[3], w.seeded.namespaces[4]}
	of := []resource{configmaps, pods, widgets}
	rule := rbacv1.PolicyRule{APIGroups: []string{"", widgets.Group}, Verbs: []string{"get", "list", "watch"}, Resources: []string{"configmaps", "pods", "widgets"}}
	for _, namespace := range slices.Concat(watchable, may) {
		if err := w.off.server.Allow(t.Context(), namespace, cluster.UniqueName("some"), cluster.Users(some), rule); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*side{w.on, w.off} {
		rights := authorizationv1.ResourceAttributes{Namespace: may[len(may)-1], Verb: "watch", Version: "v1", Resource: "configmaps"}
		if err := s.server.AwaitRights(t.Context(), some, rights); err != nil {
			t.Fatal(err)
		}
	}
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.off.server.Kubeconfig, TLS: true, Settings: settings + allowedViews, Args: []string{"--authentication=delegated"}})
	proxy := cluster.EndpointT(t, "proxy", p.URL, tokenOf(some), p.CA)
	none := cluster.EndpointT(t, "proxy", p.URL, tokenOf(nobody), p.CA)
	api := cluster.EndpointT(t, "apiserver", w.on.server.URL, tokenOf(some), w.on.server.CA)
	for range 40 {
		r := of[random.IntN(len(of))]
		s := drawShard(random, w.seeded.uids[r.Resource], w.seeded.namespaces)
		query := "?labelSelector=of%3Dseed&" + parameter(random, s.text)
		var want []string
		var selector string
		for _, namespace := range may {
			items, selected := itemsT(t, api, as(direct, cluster.Get(r.path(namespace)+query)))
			want, selector = append(want, raw(items)...), selected
		}
		query += []string{"", "&limit=7", "&resourceVersion=0"}[random.IntN(3)]
		got, selected := itemsT(t, proxy, below("mine", cluster.Get(r.path("")+query)))
		if err := differs(want, raw(got)); err != nil || selected != selector {
			t.Errorf("%s: the selector is %q instead of %q: %v", query, selected, selector, err)
		}
		if got, selected := itemsT(t, none, below("mine", cluster.Get(r.path("")+query))); len(got) > 0 || selected != selector {
			t.Errorf("%s: a user without rights gets %d objects, and the selector %q instead of %q", query, len(got), selected, selector)
		}
	}
	for _, r := range []cluster.Request{
		cluster.Get(configmaps.path(w.seeded.namespaces[0]) + "?shardSelector=" + queryOf(share(0, 2))),
		cluster.Get(nodes.path("") + "?shardSelector=" + queryOf(share(0, 2))),
	} {
		if a := proxy.AskT(t, below("mine", r)); a.Status != 403 {
			t.Errorf("%s: %d %.300s", r.Target, a.Status, a.Body)
		}
	}
	checkAllowedWatches(t, script, proxy, watchable)
}

// checkAllowedWatches compares watches of two halves with one watch of everything.
func checkAllowedWatches(t *testing.T, s *script, proxy *cluster.Endpoint, may []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	target := configmaps.path("") + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=of%3D" + s.name
	whole := openT(ctx, t, &reading, s.off.api, as(direct, cluster.Get(target)))
	whole.begins(t)
	var parts []*stream
	var ends []*watch
	for _, second := range []bool{false, true} {
		h := &watch{shard: comb(second)}
		part := openT(ctx, t, &reading, proxy, below("mine", cluster.Get(target+"&shardSelector="+queryOf(h.shard))))
		part.begins(t)
		parts, ends = append(parts, part), append(ends, h)
	}
	for range 60 {
		s.change()
	}
	s.end(ends)
	for i, h := range ends {
		whole.reaches(t, h.last)
		parts[i].reaches(t, h.last)
		want := slices.DeleteFunc(linesOf(t, whole, h.shard, h.last), func(line string) bool {
			return !slices.Contains(may, gjson.Get(line, "object.metadata.namespace").Str)
		})
		if err := differs(want, linesOf(t, parts[i], everything, h.last)); err != nil {
			t.Errorf("half %d: %v", i, err)
		}
	}
}
