package allowed

import (
	"net/http"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Without an answer from upstream, nobody sees more than before.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	between := cluster.RelayT(t, w.server.Address)
	s := w.team(t, w.proxyT(t, "https://"+between.Address(), long), 3, 2)
	a, b := s.names[0], s.names[1]
	known, unknown := user("known"), user("unknown")
	s.allow(known, "configs", a)
	s.allow(unknown, "configs", b)
	before := s.list(known, mine+"?resourceVersion=0", a)
	page := s.list(known, mine+"?limit=1", a)
	s.ask(unknown, cluster.Get("/views/mine"+configmaps.path(b)+"?resourceVersion=0"), b) // its token is known
	open := s.follow(known, strings.Fields(keys(before))...)
	// Other tests may have made namespaces that are not reviewed yet.
	cluster.Eventually(t, "all namespaces are reviewed", func() bool {
		between.Mend()
		s.ask(known, cluster.Get(mine), a)
		between.Cut()
		return s.ask(known, cluster.Get(mine+"?resourceVersion=0"), a).Status == http.StatusOK
	})
	for _, query := range []string{"?resourceVersion=0", "", "?limit=1", "?watch=true&resourceVersion=0&timeoutSeconds=1", fromState + "&timeoutSeconds=1&resourceVersion=" + before.ResourceVersion} {
		for _, c := range []caller{unknown, user("stranger")} {
			if got := s.ask(c, cluster.Get(mine+query)); got.Status != http.StatusServiceUnavailable {
				t.Errorf("%s: %q: %d %.300s", c.name, query, got.Status, got.Body)
			}
		}
		if got := s.ask(known, cluster.Get(mine+query), a); got.Status != http.StatusOK && got.Status != http.StatusServiceUnavailable {
			t.Errorf("%q: %d %.300s", query, got.Status, got.Body)
		}
	}
	after := s.list(known, mine+"?resourceVersion=0", a)
	if d := differs(before.items, after.items); d != "" || len(after.items) == 0 {
		t.Errorf("the list from the cache: %d objects, %s", len(after.items), d)
	}
	s.list(known, following(page.Continue).Target, a)
	between.Mend()
	cluster.Eventually(t, "upstream is asked again", func() bool { return s.ask(unknown, cluster.Get(mine), b).Status == http.StatusOK })
	s.expects(open, []string{a}, a+"/"+s.write(a))
}

// If upstream refuses the reviews of access and nothing else, nobody sees anything. An open watch goes on once
// it answers them again.
func TestNoReviews(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, nil, 2, 1)
	blind, who := user("blind"), user("unreviewed")
	s.must(w.server.Allow(t.Context(), "", "blind", cluster.Users("blind"),
		rule(reading, []string{"*"}),
		rbacv1.PolicyRule{APIGroups: []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}, Verbs: reading, Resources: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{"create"}, Resources: []string{"tokenreviews"}}))
	review := authorizationv1.ResourceAttributes{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews", Verb: "create"}
	allow := func(name string) {
		t.Helper()
		s.must(w.server.Allow(t.Context(), "", name, cluster.Users("blind"),
			rbacv1.PolicyRule{APIGroups: []string{review.Group}, Verbs: []string{review.Verb}, Resources: []string{review.Resource}}))
		s.must(w.server.AwaitRights(t.Context(), "blind", review))
	}
	allow("reviews")
	s.allow(who, "configs", s.names[0])
	s.bindings(blind)
	const lasts = 5 * time.Second // the least time for which decisions of watches count
	s.proxy = w.proxyAsT(t, w.server.URL, blind.token, "authorization: {webhook: {cacheAuthorizedTTL: 5s, cacheUnauthorizedTTL: 2s}}\n")
	open := s.follow(who, keys(s.list(who, mine, s.names[0])))
	s.must(w.admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), "reviews", metav1.DeleteOptions{}))
	refused := func(c caller, query string) bool {
		status := s.ask(c, cluster.Get(mine+query), s.names[0]).Status
		return status == http.StatusServiceUnavailable || status == http.StatusForbidden
	}
	cluster.Eventually(t, "reviews fail", func() bool { return refused(who, "") })
	cluster.Pause(t.Context(), lasts) // only a review in another test's namespace may have failed so far
	for _, c := range []caller{who, user("unknown"), user("nothing")} {
		for _, query := range []string{"?resourceVersion=0", "", "?limit=1", "?watch=true&resourceVersion=0&timeoutSeconds=1"} {
			if !refused(c, query) {
				t.Errorf("%s: %q is answered", c.name, query)
			}
		}
	}
	s.write(s.names[1])
	late := s.write(s.names[0])
	select {
	case e := <-open.events:
		t.Errorf("after its decisions have ended, the watch shows %s", e)
	case <-time.After(2 * time.Second):
	}
	allow("reviews-again")
	s.expects(open, s.names[:1], s.names[0]+"/"+late)
}

// bindings lets a proxy read the CAs of clients.
func (s *team) bindings(proxy caller) {
	s.t.Helper()
	_, err := s.admin.RbacV1().RoleBindings("kube-system").Create(s.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "blind"}, Subjects: cluster.Users(proxy.name),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	}, metav1.CreateOptions{})
	s.must(err)
	s.must(s.settled(s.t.Context()))
}
