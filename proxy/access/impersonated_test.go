package access

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// randomHeader returns Impersonate headers. Many of them are unusual.
func randomHeader(random *rand.Rand) http.Header {
	users := []string{
		"jane", "jane", "jane", "*", "é", "system:admin", user.Anonymous, "system:serviceaccount:a:b", "system:serviceaccount:a:b",
		"system:serviceaccount:a:", "system:serviceaccount:A:b", "system:node:n", "system:node:", "", " x", "\xff",
	}
	values := []string{"a", "a", "b", "b", "*", user.AllAuthenticated, user.AllUnauthenticated, user.SystemPrivilegedGroup, "", "b c", "\xe9"}
	pick := func(from []string, most int) (some []string) {
		for range random.IntN(most) + 1 {
			some = append(some, from[random.IntN(len(from))])
		}
		return some
	}
	h := http.Header{"Accept": {"*/*"}}
	some := func(of int, name string, from []string, most int) {
		if random.IntN(of) == 0 {
			h[http.CanonicalHeaderKey(ImpersonatePrefix+name)] = pick(from, most)
		}
	}
	if random.IntN(8) > 0 {
		h["Impersonate-User"] = pick(users, 1)
	}
	some(50, "User", users, 2)
	some(2, "Group", values, 3)
	some(4, "Uid", values[:4], 1)
	some(50, "Uid", values, 2)
	some(50, "Groups", values, 1)
	some(50, "", values, 1)
	for _, key := range []string{"scopes", "example.com%2fteam", "%73copes", "%53copes", "%zz", "%ff", ""} {
		some(12, "Extra-"+key, values, 2)
	}
	return h
}

// If the proxy understands Impersonate headers, it reviews the same rights as kube-apiserver, and
// the user is the same. Constrained impersonation does not change the user.
func TestImpersonatedAsInTheApiserver(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 1))
	caller := &Caller{User: &user.DefaultInfo{Name: "boss", Groups: []string{"bosses"}}}
	const rounds = 1000
	decided := 0
	for range rounds {
		header := randomHeader(random)
		as, rights, err := impersonationOf(caller.User, header.Clone())
		if err != nil {
			continue
		}
		decided++
		if rights == nil {
			if as != caller.User {
				t.Fatalf("%v acts as %+v", header, as)
			}
			continue
		}
		var needed []string
		for _, r := range rights {
			needed = append(needed, specOf(r).String())
		}
		slices.Sort(needed)
		for _, constrained := range []bool{false, true} {
			var asked []string
			apiserver := &Access{filter: newImpersonation(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetVerb() == "impersonate" {
					asked = append(asked, specOf(a).String())
				} else if !constrained {
					return authorizer.DecisionNoOpinion, "", nil
				}
				return authorizer.DecisionAllow, "", nil
			})}
			req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", http.NoBody)
			req.Header = header.Clone()
			want, refusal, err := apiserver.Impersonate(caller, req)
			if err != nil || want == nil || !sameUser(want, as) {
				t.Fatalf("%v acts as %+v instead of %+v %+v", header, as, want, refusal)
			}
			if slices.Sort(asked); !constrained && !slices.Equal(asked, needed) {
				t.Fatalf("%v needs %q instead of %q", header, needed, asked)
			}
		}
	}
	if decided < rounds/10 {
		t.Errorf("only %d of %d requests are understood", decided, rounds)
	}
}

func sameUser(a, b user.Info) bool {
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && slices.Equal(a.GetGroups(), b.GetGroups()) &&
		(len(a.GetExtra()) == 0 && len(b.GetExtra()) == 0 || reflect.DeepEqual(a.GetExtra(), b.GetExtra()))
}

// Upstream decides on some Impersonate headers: headers that the proxy might parse differently,
// headers that need too many reviews, and headers whose user depends on the right that allows it.
func TestDoubtfulImpersonation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := make([]string, impersonationRights)
		for i := range groups {
			groups[i] = strconv.Itoa(i)
		}
		for what, h := range map[string]http.Header{
			"no user":              {"Impersonate-Group": {"a"}},
			"only a uid":           {"Impersonate-Uid": {"a"}},
			"only an extra":        {"Impersonate-Extra-A": {"a"}},
			"empty user":           {"Impersonate-User": {""}},
			"two users":            {"Impersonate-User": {"a", "b"}},
			"no values":            {"Impersonate-User": {}},
			"empty group":          {"Impersonate-User": {"a"}, "Impersonate-Group": {"a", ""}},
			"two uids":             {"Impersonate-User": {"a"}, "Impersonate-Uid": {"a", "a"}},
			"empty uid":            {"Impersonate-User": {"a"}, "Impersonate-Uid": {""}},
			"unknown header":       {"Impersonate-User": {"a"}, "Impersonate-Else": {"a"}},
			"node":                 {"Impersonate-User": {"system:node:n"}},
			"space":                {"Impersonate-User": {"a "}},
			"control character":    {"Impersonate-User": {"a\x01"}},
			"no UTF-8":             {"Impersonate-User": {"\xe9"}},
			"extra without key":    {"Impersonate-User": {"a"}, "Impersonate-Extra-": {"a"}},
			"extra without values": {"Impersonate-User": {"a"}, "Impersonate-Extra-A": {}},
			"empty extra":          {"Impersonate-User": {"a"}, "Impersonate-Extra-A": {""}},
			"bad escape":           {"Impersonate-User": {"a"}, "Impersonate-Extra-A%zz": {"a"}},
			"upper case":           {"Impersonate-User": {"a"}, "Impersonate-Extra-%41": {"a"}},
			"key twice":            {"Impersonate-User": {"a"}, "Impersonate-Extra-A": {"a"}, "Impersonate-Extra-%61": {"a"}},
			"too many rights":      {"Impersonate-User": {"a"}, "Impersonate-Group": groups},
		} {
			a, j := newTrial(t, Options{AllowTTL: time.Minute, DenyTTL: time.Minute})
			as, err := a.EffectiveUser(t.Context(), &Caller{User: &user.DefaultInfo{Name: "good"}}, h)
			if as != nil || !errors.Is(err, ErrUndecided) || j.accesses.Load() > 0 {
				t.Errorf("%s: %+v, %v, %d reviews", what, as, err, j.accesses.Load())
			}
		}
	})
}

// The caller needs every single right, and each review must succeed.
func TestImpersonationNeedsEveryRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		header := http.Header{
			"Impersonate-User": {"system:serviceaccount:a:b"}, "Impersonate-Group": {"g", "h"},
			"Impersonate-Uid": {"1"}, "Impersonate-Extra-Example.com%2fkey": {"v", "w"},
		}
		const needed = 6
		caller := &Caller{User: &user.DefaultInfo{Name: "good"}}
		for denied := range needed + 1 {
			a, j := newTrial(t, Options{AllowTTL: time.Minute, DenyTTL: time.Minute})
			asked := 0
			j.denies = func(*authorizationv1.SubjectAccessReviewSpec) bool { asked++; return asked == denied+1 }
			as, err := a.EffectiveUser(t.Context(), caller, header)
			if denied < needed {
				if as != nil || !errors.Is(err, ErrUndecided) {
					t.Errorf("right %d is denied: %+v, %v", denied, as, err)
				}
				continue
			}
			if err != nil || asked != needed || as.GetName() != "system:serviceaccount:a:b" {
				t.Errorf("%d rights: %+v, %v", asked, as, err)
			}
			j.broken.Store(http.StatusForbidden)
			header.Set("Impersonate-Uid", "2")
			if as, err := a.EffectiveUser(t.Context(), caller, header); as != nil || !errors.Is(err, ErrUnavailable) {
				t.Errorf("without an answer: %+v, %v", as, err)
			}
		}
	})
}

// If upstream gives no answer about the right of a certificate's owner, this is an outage, not a
// refusal.
func TestImpersonationNeedsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, j := newTrial(t, Options{AllowTTL: time.Minute, DenyTTL: time.Minute})
		for _, test := range []struct {
			sender  string
			broken  int
			refused int
			err     error
		}{
			{"good", http.StatusInternalServerError, 0, ErrUnavailable},
			{"good", http.StatusForbidden, 0, ErrUnavailable},
			{"bad", http.StatusForbidden, 0, ErrUnavailable},
			{"good", 0, 0, nil},
			{"bad", 0, http.StatusForbidden, nil},
		} {
			j.broken.Store(int64(test.broken))
			req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", http.NoBody)
			req.Header.Set("Impersonate-User", "target")
			as, refusal, err := a.Impersonate(&Caller{User: &user.DefaultInfo{Name: test.sender}}, req)
			if !errors.Is(err, test.err) || (refusal != nil) != (test.refused != 0) || (as != nil) != (err == nil && refusal == nil) {
				t.Errorf("%+v: %v, %+v, %v", test, as, refusal, err)
			}
			if refusal != nil && (refusal.Code != test.refused || !strings.Contains(string(refusal.Body), "cannot impersonate")) {
				t.Errorf("%+v: %d %s", test, refusal.Code, refusal.Body)
			}
		}
	})
}

// All reviews use the caller's turns, whichever user the caller impersonates. Users that differ in
// any part are reviewed separately.
func TestReviewsOfTheImpersonatedAreTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, j := newTrial(t, Options{AllowTTL: time.Minute, DenyTTL: time.Minute})
		var users []string
		j.denies = func(spec *authorizationv1.SubjectAccessReviewSpec) bool {
			if spec.ResourceAttributes.Verb == "list" {
				users = append(users, fmt.Sprint(spec.User, spec.UID, spec.Groups, spec.Extra))
			}
			return false
		}
		all := []http.Header{{"Impersonate-User": {"good1"}, "Impersonate-Group": {"g"}}, {"Impersonate-User": {"good1"}, "Impersonate-Uid": {"1"}}}
		for i := range 3 {
			all = append(all, http.Header{"Impersonate-User": {fmt.Sprintf("good%d", i)}},
				http.Header{"Impersonate-User": {"good1"}, "Impersonate-Extra-Key": {strconv.Itoa(i)}})
		}
		for range 2 {
			for _, h := range all {
				as, err := a.EffectiveUser(t.Context(), &Caller{User: &user.DefaultInfo{Name: "good"}}, h)
				if err != nil {
					t.Fatal(err)
				}
				r := reading("").(*authorizer.AttributesRecord)
				r.User = as
				if decision, _, err := a.Authorize(t.Context(), r); decision != authorizer.DecisionAllow {
					t.Fatal(decision, err)
				}
			}
		}
		if slices.Sort(users); len(users) != len(all) || len(slices.Compact(users)) != len(all) {
			t.Errorf("the reads of %d users were reviewed for %s", len(all), strings.Join(users, "; "))
		}
		if n := len(a.decisions.known.mu.holders); n != 1 {
			t.Errorf("the outcomes belong to %d callers", n)
		}
	})
}
