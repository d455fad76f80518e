//go:build verify

package conformance

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// scopedForms are watches of pods. In a path, $IN is the collection in the script's namespace.
var scopedForms = []string{
	"$IN?watch=true&resourceVersion=$N",
	"$IN?watch=true&resourceVersion=0&allowWatchBookmarks=true",
	"$IN?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	"$IN?watch=true&resourceVersion=$N&labelSelector=app%3Dweb",
	"$IN?watch=true&resourceVersion=$N&labelSelector=app!%3Dweb",
	"$IN?watch=true&resourceVersion=$N&fieldSelector=metadata.name%3D$FIRST",
	"$IN?watch=true&resourceVersion=$N&fieldSelector=spec.nodeName%3Dn1",
	"$IN?watch=true&resourceVersion=$N&fieldSelector=spec.nodeName%3Dn1,status.phase!%3DRunning",
	"$IN?watch=true&resourceVersion=0&fieldSelector=spec.nodeName%3Dn1&labelSelector=app%3Dweb&allowWatchBookmarks=true",
	"$IN?watch=true&fieldSelector=spec.nodeName%3Dn1&labelSelector=app+in+(web,db)",
	"$ALL?watch=true&resourceVersion=$N&fieldSelector=spec.nodeName%3Dn1",
	"$ALL?watch=true&resourceVersion=0&allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dn1",
	"$ALL?watch=true&resourceVersion=$N&fieldSelector=spec.nodeName%3Dn1,metadata.namespace%3D$HOME",
}

// watchScoped opens watches, runs a script, and compares the events. The proxy must answer all
// watches from its caches.
func watchScoped(t *testing.T, s *script, within func(form string) bool) {
	t.Helper()
	var n uint64
	asAdmin(t, func() { n = s.object(s.home, cluster.UniqueName(s.first), "web", "n1").createT(t) })
	must(t, proxied, get(fmt.Sprintf("%s?fieldSelector=spec.nodeName%%3Dn1&resourceVersionMatch=NotOlderThan&resourceVersion=%d", pods.in(s.home), n)), 200)
	fill := strings.NewReplacer("$N", fmt.Sprint(n), "$HOME", s.home, "$FIRST", s.first, "$IN", pods.in(s.home), "$ALL", pods.all())
	var open []*pair
	for _, form := range scopedForms {
		if !within(form) {
			continue
		}
		r := get(fill.Replace(form))
		open = append(open, openPair(t, form, r, cache))
		for _, accept := range []string{"application/vnd.kubernetes.protobuf", table} {
			open = append(open, openPair(t, form+" as "+accept, r.With("Accept", accept), cache))
		}
	}
	asAdmin(t, func() {
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	compareEach(t, open, fenced(s.first))
}

// asAdmin runs writes with the rights of an administrator.
func asAdmin(t *testing.T, write func()) {
	t.Helper()
	token := apiserver.Token
	apiserver.Token = suite.Token
	defer func() { apiserver.Token = token }()
	write()
}

// ownToken creates a service account and returns its name and its token.
func ownToken(t *testing.T, namespace string) (user, token string) {
	t.Helper()
	ctx, accounts := t.Context(), suite.Client().CoreV1().ServiceAccounts(namespace)
	account, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "scoped-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := accounts.CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "system:serviceaccount:" + namespace + ":" + account.Name, issued.Status.Token
}

// A proxy whose rights end at a namespace caches it if its scopes name it. It answers as the apiserver
// answers the same user, and forwards everything else. It notices lost rights only with its next watch,
// and needs no right to get what it may list.
func TestScopesOfRights(t *testing.T) {
	needsAdmin(t)
	s := newScript(t, pods)
	user, token := ownToken(t, s.home)
	allow := func(name string, rule rbacv1.PolicyRule) (role string) {
		t.Helper()
		role = cluster.UniqueName(name)
		if err := suite.Allow(t.Context(), s.home, role, cluster.Users(user), rule); err != nil {
			t.Fatal(err)
		}
		may := authorizationv1.ResourceAttributes{Verb: "list", Namespace: s.home, Group: rule.APIGroups[0], Resource: rule.Resources[0]}
		if err := suite.AwaitRights(t.Context(), user, may); err != nil {
			t.Fatal(err)
		}
		return role
	}
	core := []string{""}
	home := allow("home", rbacv1.PolicyRule{APIGroups: core, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}})
	allow("widgets", rbacv1.PolicyRule{APIGroups: []string{"example.com"}, Resources: []string{"widgets"}, Verbs: []string{"list", "watch"}})
	allow("listed", rbacv1.PolicyRule{APIGroups: core, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}})
	n := s.object(s.home, s.first+"-before", "web", "n1").createT(t)
	s.object(s.elsewhere, s.first+"-before", "web", "n1").createT(t)
	anotherProxy(t, suite, token, strings.Replace(settings, "cache: {", "cache: {scopes: [{namespaces: ["+s.home+"]}], ", 1))
	proxied.Token = token // as an application in the same pod sends it
	reach := func(path string, from source, status int) {
		t.Helper()
		for _, accept := range kept {
			row{name: path, request: get(path).With("Accept", accept), status: status, from: from, open: openOf(path), moving: true}.check(t)
		}
	}
	in, before := pods.in(s.home), s.first+"-before"
	for _, query := range []string{
		"", "?resourceVersion=0", "?limit=1", "?resourceVersion=0&labelSelector=app%3Dweb", "?fieldSelector=spec.nodeName%3Dn1",
		fmt.Sprintf("?resourceVersion=%d&resourceVersionMatch=NotOlderThan", n), "?resourceVersion=0&fieldSelector=metadata.name%3D" + before,
	} {
		reach(in+query, cache, 200)
	}
	reach(in+"/"+before+"?resourceVersion=0", cache, 200)
	reach(in+"/nobody?resourceVersion=0", cache, 404)
	// Only the apiserver knows whether a custom resource is defined, or another server's.
	reach(widgets.in(s.home)+"?resourceVersion=0", upstream, 200)
	for _, path := range []string{
		pods.all(), pods.all() + "?resourceVersion=0", pods.all() + "?resourceVersion=0&fieldSelector=metadata.namespace%3D" + s.home,
		pods.in(s.elsewhere) + "?resourceVersion=0", nodes.all() + "?resourceVersion=0", "/api/v1/namespaces/" + s.home + "?resourceVersion=0",
	} {
		reach(path, upstream, 403)
	}
	watchScoped(t, s, func(form string) bool { return strings.HasPrefix(form, "$IN") })
	cached := func(path string, status int) bool {
		t.Helper()
		got, err := proxied.Ask(t.Context(), get(path))
		if err != nil || got.Status != status {
			return false
		}
		from, err := answers.of(t.Context(), got.Header)
		return err == nil && from == cache
	}
	if !cached(configMaps.in(s.home)+"/nobody?resourceVersion=0", 404) {
		t.Error("a get of what may be listed is not from the cache")
	}
	if err := suite.Client().RbacV1().RoleBindings(s.home).Delete(t.Context(), home, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "the proxy has lost its rights", func() bool {
		got, err := proxied.Ask(t.Context(), get(in+"/"+before))
		return err == nil && got.Status == 403
	})
	// The proxy notices it when its next watch begins.
	for _, path := range []string{in, in + "/" + before} {
		if !cached(path+"?resourceVersion=0", 200) {
			t.Errorf("%s is not from the cache", path)
		}
	}
}

// openOf returns the rule for a list, whose resourceVersion may differ, or for a get.
func openOf(path string) Rule {
	path, _, _ = strings.Cut(path, "?")
	if strings.Count(strings.TrimPrefix(path, "/api/v1/namespaces/"), "/")%2 == 0 || strings.HasPrefix(path, nodes.all()+"/") {
		return nil
	}
	return SomeState(0)
}

// needsAdmin skips a test whose proxies have rights of their own, if the suite's proxy has them.
func needsAdmin(t *testing.T) {
	t.Helper()
	if *rights != "" || *tiers != 1 {
		t.Skip("the test's proxies stand directly in front of the apiserver, with rights of their own")
	}
}

// A cache of a node's pods, of labelled objects or of namespaces answers exactly the requests
// within its scope.
func TestConfiguredScopes(t *testing.T) {
	needsAdmin(t)
	s := newScript(t, pods)
	t.Setenv("SCOPE_NODE", "n1")
	t.Setenv("SCOPE_NAMESPACE", s.home)
	s.object(s.home, s.first+"-before", "web", "n1").createT(t)
	s.object(s.elsewhere, s.first+"-before", "web", "n1").createT(t)
	s.object(s.home, s.first+"-other", "web", "n2").createT(t)
	anotherProxy(t, suite, suite.Token, strings.Replace(settings, "cache: {", `cache: {scopes: [
		{resources: [pods], fieldSelector: spec.nodeName=$(SCOPE_NODE)}, {resources: [configmaps], labelSelector: parity=odd},
		{resources: [nodes, namespaces]}, {namespaces: [$(SCOPE_NAMESPACE), a-b]}], `, 1))
	in, node, odd := pods.in(s.home), "fieldSelector=spec.nodeName%3Dn1", "labelSelector=parity%3Dodd"
	for _, test := range []struct {
		path string
		from source
	}{
		{pods.all() + "?" + node, cache},
		{pods.all() + "?resourceVersion=0&" + node, cache},
		{pods.all() + "?limit=1000&" + node, cache},
		{pods.all() + "?limit=1&" + node, upstream}, // whether others remain is not known
		{in + "?resourceVersion=0&" + node + "&labelSelector=app%3Dweb", cache},
		{in + "?" + node + ",status.phase%3DPending", cache},
		{in + "?resourceVersion=0", upstream},
		{in + "?resourceVersion=0&fieldSelector=spec.nodeName!%3Dn1", upstream},
		{in + "?resourceVersion=0&fieldSelector=spec.nodeName%3Dn2", upstream},
		{in + "?resourceVersion=0&labelSelector=app%3Dweb", upstream},
		{in + "/" + s.first + "-before?resourceVersion=0", upstream},
		{in + "/" + s.first + "-other?resourceVersion=0", upstream},
		{configMaps.all() + "?" + odd, cache},
		{configMaps.in("many") + "?resourceVersion=0&labelSelector=parity%3Dodd,parity", cache},
		{configMaps.in("many") + "?limit=10&" + odd, upstream},
		{configMaps.in("many") + "?limit=69&" + odd, upstream},
		{configMaps.in("many") + "?limit=70&" + odd, upstream}, // all of them, but the apiserver has a token for the rest
		{configMaps.in("many") + "?limit=71&" + odd, cache},
		{configMaps.all() + "?limit=70&" + odd, upstream},
		{configMaps.in("many") + "?resourceVersion=0&labelSelector=parity+in+(odd,even)", upstream},
		{configMaps.in("many") + "?resourceVersion=0", upstream},
		{nodes.all() + "?resourceVersion=0", cache},
		{nodes.all() + "/n1?resourceVersion=0", cache},
		{"/api/v1/namespaces/a?resourceVersion=0", cache},
		{widgets.in("a-b") + "?resourceVersion=0", cache},
		{widgets.in("a-b") + "?limit=1", cache},
		{widgets.in("a") + "?resourceVersion=0", upstream},
		{widgets.all() + "?resourceVersion=0", upstream},
		{widgets.all() + "?resourceVersion=0&fieldSelector=metadata.namespace%3Da-b", upstream},
		{endpoints.in("a-b") + "/backends?resourceVersion=0", cache},
		{planets.all() + "?resourceVersion=0", upstream}, // no scope lists it
	} {
		for _, accept := range kept {
			row{
				name: test.path, request: get(test.path).With("Accept", accept), status: 200, from: test.from,
				open: openOf(test.path), moving: true,
			}.check(t)
		}
	}
	watchScoped(t, s, func(form string) bool { return strings.Contains(form, "spec.nodeName%3Dn1") })
}
