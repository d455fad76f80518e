package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// If any list contains a name, the right to impersonate is limited to the names, and an empty list
// grants nothing. If no list contains a name, the right is unlimited.
func TestImpersonationIsBounded(t *testing.T) {
	for lists, want := range map[string]map[string][]string{
		``:                                       {"users": nil, "groups": nil, "serviceaccounts": nil},
		`userExtras: [team]`:                     {"users": nil, "groups": nil, "serviceaccounts": nil},
		`users: [jenkins]`:                       {"users": {"jenkins"}},
		`groups: [developers]`:                   {"groups": {"developers"}},
		`serviceAccounts: [builder]`:             {"serviceaccounts": {"builder"}},
		`users: [jenkins], groups: [developers]`: {"users": {"jenkins"}, "groups": {"developers"}},
	} {
		got := map[string][]string{}
		all := render(t, parseValues(t, `{tls: {mode: certManager}, rbac: {impersonation: {enabled: true, `+lists+`}}}`))
		for _, o := range all.of("ClusterRole") {
			if !strings.HasSuffix(o.GetName(), "-impersonator") {
				continue
			}
			for _, r := range as[rbacv1.ClusterRole](t, o).Rules {
				if slices.Equal(r.APIGroups, []string{""}) {
					got[r.Resources[0]] = r.ResourceNames
				}
			}
		}
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: whom it may impersonate: %v instead of %v", lists, got, want)
		}
	}
}
