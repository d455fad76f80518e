package clients

import (
	"net/http"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whoever brings an identity gets what that identity may have, from the apiserver, even where the cache could answer.
func TestIdentityOfTheClient(t *testing.T) {
	w := sharedWorld(t)
	allowBob(t, w)
	const (
		pods      = "/api/v1/namespaces/default/pods"
		allowed   = "/api/v1/namespaces/default/configmaps"
		forbidden = http.StatusForbidden
	)
	endpoints := w.endpoints(t)
	for _, warm := range []string{pods, allowed} {
		w.proxied(t, warm+"?resourceVersion=0")
	}
	for name, test := range map[string]struct {
		header http.Header
		target string
		want   int
	}{
		"nobody's token":        {bearer("garbage"), pods, http.StatusUnauthorized},
		"nobody's token, cache": {bearer("garbage"), pods + "?resourceVersion=0", http.StatusUnauthorized},
		"nobody's token, watch": {bearer("garbage"), pods + "?watch=1&resourceVersion=0", http.StatusUnauthorized},
		"nobody's token, get":   {bearer("garbage"), "/api/v1/namespaces/default?resourceVersion=0", http.StatusUnauthorized},
		"bob":                   {bearer(bobsToken), pods, forbidden},
		"bob, cache":            {bearer(bobsToken), pods + "?resourceVersion=0", forbidden},
		"bob, watch":            {bearer(bobsToken), pods + "?watch=1&resourceVersion=0", forbidden},
		"bob, allowed":          {bearer(bobsToken), allowed + "?resourceVersion=0", http.StatusOK},
		"bob, impersonated":     {http.Header{"Impersonate-User": {"bob"}}, pods + "?resourceVersion=0", forbidden},
		"bob, may impersonate": {
			http.Header{"Authorization": {"Bearer " + bobsToken}, "Impersonate-User": {"admin"}, "Impersonate-Group": {"system:masters"}},
			pods + "?resourceVersion=0", forbidden,
		},
		"another scheme": {http.Header{"Authorization": {"Basic YTpi"}}, pods + "?resourceVersion=0", forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			got := endpoints[1].get(t, test.target, test.header)
			if got.status != test.want {
				t.Errorf("%d instead of %d\n%s", got.status, test.want, got.body)
			}
			header := test.header.Clone()
			if header.Get("Authorization") == "" {
				header.Set("Authorization", "Bearer "+endpoints[0].token) // the proxy's own
			}
			want := endpoints[0].get(t, test.target, header)
			if got.status != want.status || got.status != http.StatusOK && string(got.body) != string(want.body) {
				t.Errorf("the apiserver says %d %s\nthe proxy %d %s", want.status, want.body, got.status, got.body)
			}
		})
	}
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// allowBob lets bob read configmaps.
func allowBob(t *testing.T, w *world) {
	t.Helper()
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "bob"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta,
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "bob", APIGroup: "rbac.authorization.k8s.io"}},
		RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: "bob", APIGroup: "rbac.authorization.k8s.io"},
	}
	if _, err := w.admin.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if _, err := w.admin.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	bob := w.endpoints(t)[0]
	bob.token = bobsToken
	eventually(t, "bob may list configmaps", func() bool {
		return bob.get(t, "/api/v1/namespaces/default/configmaps", nil).status == http.StatusOK
	})
}

// A web page could make a browser send requests to loopback. They carry the page's own name.
func TestHostProtection(t *testing.T) {
	w := sharedWorld(t)
	for host, want := range map[string]int{
		"evil.example":           http.StatusForbidden,
		"evil.example:8001":      http.StatusForbidden,
		"127.0.0.1.evil.example": http.StatusForbidden,
		"localhost.evil.example": http.StatusForbidden,
		"10.0.0.1":               http.StatusForbidden,
		"127.0.0.1":              http.StatusOK,
		"127.0.0.1:1234":         http.StatusOK,
		"localhost:8001":         http.StatusOK,
		"LOCALHOST":              http.StatusOK,
		"[::1]:8001":             http.StatusOK,
	} {
		for _, target := range []string{"/version", "/api/v1/pods?resourceVersion=0"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.proxy.URL+target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("Host: %s: %s: %d instead of %d", host, target, resp.StatusCode, want)
			}
		}
	}
}
