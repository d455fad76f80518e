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
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// randomHeader returns Impersonate headers. Many of them are unusual.
func randomHeader(random *rand.Rand) http.Header {
	users := []string{
		"jane", "jane", "jane", "*", "é", "system:admin", user.Anonymous, "system:serviceaccount:a:b", "system:serviceaccount:a:b",
		"system:serviceaccount:a:", "system:serviceaccount:A:b", "system:node:n", "system:node:", "", " x", "x ", "x\x01", "\xff",
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
	some(50, "Group", values[:2], 2*impersonationRights)
	some(2, "Group", values, 3)
	some(4, "Uid", values[:4], 1)
	some(50, "Uid", values, 2)
	some(50, "Groups", values, 1)
	some(50, "", values, 1)
	for _, key := range []string{"scopes", "example.com%2fteam", "%73copes", "%53copes", "%zz", "%ff", ""} {
		some(12, "Extra-"+key, values, 2)
	}
	if random.IntN(50) == 0 {
		h["Impersonate-Uid"] = nil
	}
	return h
}

// If the proxy understands Impersonate headers, a read acts as the same user as a request that
// kube-apiserver checks with constrained impersonation, whatever kind of right allows that. It needs
// the right to each part, and no more rights than may be reviewed for a read.
func TestImpersonatedAsInTheApiserver(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 1))
	caller := &Caller{User: &user.DefaultInfo{
		Name: "boss", UID: "7", Groups: []string{"bosses"}, Extra: map[string][]string{"scopes": {"a"}},
	}}
	var asked []string
	only := func(verbs func(verb string) bool) authorizer.AuthorizerFunc {
		return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if !verbs(a.GetVerb()) {
				return authorizer.DecisionNoOpinion, "", nil
			}
			if !reflect.DeepEqual(a.GetUser(), caller.User) {
				t.Fatalf("%+v is reviewed instead of the caller", a.GetUser())
			}
			if a.GetVerb() == "impersonate" {
				asked = append(asked, strings.Join([]string{a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName()}, " "))
			}
			return authorizer.DecisionAllow, "", nil
		}
	}
	reviews := func(act func() (user.Info, error)) (user.Info, []string, error) {
		asked = nil
		as, err := act()
		slices.Sort(asked)
		return as, asked, err
	}
	const rounds = 1000
	decided := 0
	for range rounds {
		header := randomHeader(random)
		all := func(string) bool { return true }
		read := &Access{unconstrained: newImpersonation(only(all), impersonation.WithImpersonation)}
		as, needed, err := reviews(func() (user.Info, error) {
			return read.EffectiveUser(t.Context(), caller, header)
		})
		if err != nil {
			continue
		}
		decided++
		if len(needed) == 0 {
			if as != caller.User {
				t.Fatalf("%v acts as %+v", header, as)
			}
			continue
		}
		if len(needed) > impersonationRights {
			t.Fatalf("%v needs %d reviews", header, len(needed))
		}
		for _, constrained := range []bool{false, true} {
			apiserver := &Access{constrained: newImpersonation(only(func(verb string) bool {
				return constrained || verb == "impersonate"
			}), impersonation.WithConstrainedImpersonation)}
			req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", http.NoBody)
			req.Header = header.Clone()
			want, asked, err := reviews(func() (user.Info, error) {
				want, _, err := apiserver.Impersonate(caller, req)
				return want, err
			})
			if err != nil || want == nil || !sameUser(want, as) {
				t.Fatalf("%v acts as %+v instead of %+v: %v", header, as, want, err)
			}
			if !constrained && !slices.Equal(asked, needed) {
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

// Upstream decides on headers that the proxy might parse differently, that need too many reviews, or whose user
// depends on the right that allows it. Nothing is reviewed for them.
func TestDoubtfulImpersonation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, h := range map[string]http.Header{
			"no user":         {"Impersonate-Group": {"a"}},
			"no value":        {"Impersonate-User": nil},
			"two users":       {"Impersonate-User": {"a", "b"}},
			"two uids":        {"Impersonate-User": {"a"}, "Impersonate-Uid": {"a", "a"}},
			"unknown header":  {"Impersonate-User": {"a"}, "Impersonate-Else": {"a"}},
			"unusual key":     {"Impersonate-User": {"a"}, "Impersonate-Extra-%ff": {"a"}},
			"no key":          {"Impersonate-User": {"a"}, "Impersonate-Extra-": {"a"}},
			"capital in key":  {"Impersonate-User": {"a"}, "Impersonate-Extra-%53copes": {"a"}},
			"node":            {"Impersonate-User": {"system:node:n"}},
			"too many rights": {"Impersonate-User": {"a"}, "Impersonate-Group": slices.Repeat([]string{"g"}, impersonationRights)},
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
			j.garbled = failing(http.StatusForbidden)
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
			garbled func(*http.Response)
			refused int
			err     error
		}{
			{"good", failing(http.StatusInternalServerError), 0, ErrUnavailable},
			{"good", failing(http.StatusForbidden), 0, ErrUnavailable},
			{"bad", failing(http.StatusForbidden), 0, ErrUnavailable},
			{"good", nil, 0, nil},
			{"bad", nil, http.StatusForbidden, nil},
		} {
			j.garbled = test.garbled
			req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", http.NoBody)
			req.Header.Set("Impersonate-User", "target")
			as, refusal, err := a.Impersonate(&Caller{User: &user.DefaultInfo{Name: test.sender}}, req)
			if !errors.Is(err, test.err) || (refusal != nil) != (test.refused != 0) || (as != nil) != (err == nil && refusal == nil) {
				t.Errorf("%s: %v, %+v, %v", test.sender, as, refusal, err)
			}
			if refusal != nil && (refusal.Code != test.refused || !strings.Contains(string(refusal.Body), "cannot impersonate")) {
				t.Errorf("%s: %d %s", test.sender, refusal.Code, refusal.Body)
			}
		}
	})
}

// All reviews use the caller's turns, whichever user the caller impersonates.
func TestReviewsOfTheImpersonatedAreTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, j := newTrial(t, Options{AllowTTL: time.Minute, DenyTTL: time.Minute})
		caller := &Caller{User: &user.DefaultInfo{Name: "good"}}
		reads := make([]*authorizer.AttributesRecord, 2*reviewsMax)
		for i := range reads {
			reads[i] = reading("").(*authorizer.AttributesRecord)
			header := http.Header{"Impersonate-User": {fmt.Sprint("good", i)}}
			var err error
			if reads[i].User, err = a.EffectiveUser(t.Context(), caller, header); err != nil {
				t.Fatal(err)
			}
		}
		j.accesses.Store(0)
		j.hold = make(chan struct{})
		var all sync.WaitGroup
		for _, read := range reads {
			all.Go(func() { _, _, _ = a.Authorize(t.Context(), read) })
		}
		synctest.Wait()
		if n := j.accesses.Load(); n != reviewsMax/2 {
			t.Errorf("one caller has %d of %d reviews", n, reviewsMax)
		}
		close(j.hold)
		all.Wait()
	})
}
