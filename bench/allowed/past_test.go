package allowed

import (
	"net/http"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A user's tokens may have different rights. A client whose token is replaced has been shown less,
// so it lists again.
func TestTokenIsReplaced(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 1)
	a, b := s.names[0], s.names[1]
	for group, in := range map[string]string{"few": a, "more": b} {
		s.must(s.bind(t.Context(), in, "configs", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}))
	}
	s.must(s.settled(t.Context()))
	before, after := user("many-old"), user("many-new")
	s.list(after, mine, a, b)
	s.write(a)
	l := s.list(before, mine, a)
	if e := s.next(s.from(after, l.ResourceVersion), a, b); !expired(e) {
		t.Errorf("a watch that misses objects shows %s", e)
	}
	s.expects(s.from(before, l.ResourceVersion), []string{a}, a+"/"+s.write(a))
	s.must(s.writesElsewhere(t.Context()))
	l = s.list(after, mine, a, b)
	s.expects(s.from(after, l.ResourceVersion), s.names, b+"/"+s.write(b))
}

// Replicas may decide at different times. A client that moves soon after a change lists again.
func TestReplicas(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	one := w.team(t, mindful(t), 2, 1)
	two := *one
	two.proxy = forgetful(t)
	a, b, who := one.names[0], one.names[1], user("mover")
	one.allow(who, "configs", a)
	one.list(who, mine, a)
	one.allow(who, "configs", b)
	l := one.list(who, mine, a) // it remembers that b was denied
	if e := two.next(two.from(who, l.ResourceVersion), a, b); !expired(e) {
		t.Errorf("a watch at a replica that does not know the user shows %s", e)
	}
	two.list(who, mine, a, b)
	one.write(a)
	l = one.list(who, mine, a)
	if e := two.next(two.from(who, l.ResourceVersion), a, b); !expired(e) {
		t.Errorf("a watch at a replica that knows the user shows %s", e)
	}
	one.must(one.writesElsewhere(t.Context()))
	l = two.list(who, mine, a, b)
	two.expects(two.from(who, l.ResourceVersion), one.names, b+"/"+one.write(b))
}

// For a user who may read nothing, no collection without namespaces is cached.
func TestNobodyFillsCaches(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, long), 0, 0)
	for _, path := range []string{"/api/v1/nodes", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/none.test/v1/things"} {
		direct, err := get(t.Context(), s.api, user("nobody"), cluster.Get(path))
		s.must(err)
		for _, query := range []string{"", "?watch=true", "?limit=1"} {
			if a := s.ask(user("nobody"), cluster.Get("/views/mine"+path+query)); a.Status != http.StatusForbidden || a.Status != direct.Status {
				t.Errorf("%s%s: %d %.200s", path, query, a.Status, a.Body)
			}
		}
	}
	for _, resource := range []string{"nodes", "clusterroles"} {
		if s.process.CachedT(t, resource) {
			t.Errorf("%s are cached", resource)
		}
	}
}
