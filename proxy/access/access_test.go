package access

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// judge answers reviews. A token that begins with "good" belongs to the user of that name. The user
// "good" may do everything. It stands in for upstream without a network, so that tests can use a
// bubble.
type judge struct {
	tokens, accesses atomic.Int64
	posted           atomic.Int64 // bytes of access reviews
	reason           string       // of refusals
	denies           func(*authorizationv1.SubjectAccessReviewSpec) bool
	broken           atomic.Int64         // the status code of failures; 0 for no failures
	garbled          func(*http.Response) // spoils responses; nil: they stay
	hold             chan struct{}        // responses wait until it is closed; nil: they do not wait
}

// RoundTrip implements http.RoundTripper.
func (j *judge) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	question, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	var answer any
	switch r := question.(type) {
	case *authenticationv1.TokenReview:
		j.tokens.Add(1)
		r.Status = authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}
		if strings.HasPrefix(r.Spec.Token, "good") {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: r.Spec.Token}}
		}
		answer = r
	case *authorizationv1.SubjectAccessReview:
		j.accesses.Add(1)
		j.posted.Add(int64(len(body)))
		r.Status.Allowed = strings.HasPrefix(r.Spec.User, "good") && (j.denies == nil || !j.denies(&r.Spec))
		if !r.Status.Allowed {
			r.Status.Reason = j.reason
		}
		r.Spec = authorizationv1.SubjectAccessReviewSpec{}
		answer = r
	}
	if j.hold != nil {
		select {
		case <-j.hold:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if code := int(j.broken.Load()); code != 0 {
		w.WriteHeader(code)
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: metav1.StatusReasonForbidden}
	} else {
		w.WriteHeader(http.StatusCreated)
	}
	_ = json.NewEncoder(w).Encode(answer)
	resp := w.Result()
	if j.garbled != nil {
		j.garbled(resp)
	}
	return resp, nil
}

func newTrial(t *testing.T, options Options) (*Access, *judge) {
	t.Helper()
	j := &judge{}
	a, err := New(&rest.Config{Host: "https://upstream", Transport: j}, nil, options, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return a, j
}

func (a *Access) ask(t *testing.T, token string) (*Caller, error) {
	t.Helper()
	return a.askFrom(t.Context(), t, "", token)
}

func (a *Access) askFrom(ctx context.Context, t *testing.T, address, token string) (*Caller, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/pods", http.NoBody)
	if err != nil {
		t.Error(err)
		return nil, err
	}
	req.RemoteAddr = address
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return a.Authenticate(req)
}

func reading(name string) authorizer.Attributes {
	return &authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: "list", APIVersion: "v1", Resource: "pods", ResourceRequest: true}
}

// If many clients need the same review at the same time, upstream receives one review. Good and bad
// outcomes are remembered.
func TestReviewsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, j := newTrial(t, Options{TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Minute})
		j.hold = make(chan struct{})
		const crowd = 50
		var all sync.WaitGroup
		for i := range crowd {
			name := []string{"good", "bad"}[i%2]
			all.Go(func() {
				c, err := a.ask(t, name)
				if (err == nil) != (name == "good") || err != nil && !errors.Is(err, ErrUnauthenticated) || err == nil && c.User.GetName() != name {
					t.Errorf("token %s: %+v, %v", name, c, err)
				}
			})
			all.Go(func() {
				decision, _, err := a.Authorize(t.Context(), reading(name))
				if (decision == authorizer.DecisionAllow) != (name == "good") || err != nil {
					t.Errorf("%s: %v, %v", name, decision, err)
				}
			})
		}
		synctest.Wait()
		close(j.hold)
		all.Wait()
		_, _ = a.ask(t, "bad")
		_, _, _ = a.Authorize(t.Context(), reading("bad"))
		if n, m := j.tokens.Load(), j.accesses.Load(); n != 2 || m != 2 {
			t.Errorf("%d reviews of 2 tokens, %d of the access of 2 users", n, m)
		}
	})
}

// If a review fails, the client is not admitted, but the failure does not count as a refusal.
func TestFailedReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, code := range []int64{http.StatusForbidden, http.StatusNotFound, http.StatusConflict} {
			a, j := newTrial(t, Options{Anonymous: true, TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Minute})
			j.broken.Store(code)
			if c, err := a.ask(t, "good"); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%d: %+v, %v", code, c, err)
			}
			if decision, _, err := a.Authorize(t.Context(), reading("good")); decision == authorizer.DecisionAllow || !errors.Is(err, ErrUnavailable) {
				t.Errorf("%d: %v, %v", code, decision, err)
			}
			j.broken.Store(0)
			if _, err := a.ask(t, "good"); err != nil {
				t.Errorf("the failure is remembered: %v", err)
			}
			if decision, _, err := a.Authorize(t.Context(), reading("good")); decision != authorizer.DecisionAllow {
				t.Errorf("the failure is remembered: %v, %v", decision, err)
			}
		}
	})
}

// An answer that breaks off, or is none, refuses no token: neither a new one nor one that is known.
func TestGarbledReviews(t *testing.T) {
	body := func(r io.Reader) func(*http.Response) {
		return func(resp *http.Response) { resp.Body, resp.ContentLength = io.NopCloser(r), -1 }
	}
	for name, garbled := range map[string]func(*http.Response){
		"breaks off": body(io.MultiReader(strings.NewReader(`{"kind":`), iotest.ErrReader(io.ErrUnexpectedEOF))),
		"ends early": body(strings.NewReader(`{"kind":`)),
		"is empty":   body(strings.NewReader("")),
		"is a page": func(resp *http.Response) {
			body(strings.NewReader("<html>"))(resp)
			resp.Header.Set("Content-Type", "text/html")
			resp.StatusCode = http.StatusOK
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, j := newTrial(t, Options{Anonymous: true, TokenTTL: time.Minute})
				j.garbled = garbled
				if c, err := a.ask(t, "good"); !errors.Is(err, ErrUnavailable) {
					t.Errorf("at first: %+v, %v", c, err)
				}
				j.garbled = nil
				if _, err := a.ask(t, "good"); err != nil {
					t.Errorf("afterwards: %v", err)
				}
				j.garbled = garbled
				time.Sleep(50 * time.Second)
				for range 2 { // the first one begins the renewal
					if _, err := a.ask(t, "good"); err != nil {
						t.Errorf("while it is renewed: %v", err)
					}
					synctest.Wait()
				}
			})
		})
	}
}

// A client is anonymous only if anonymous clients are enabled. A client with invalid credentials is
// not anonymous.
func TestAnonymous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, enabled := range []bool{false, true} {
			a, _ := newTrial(t, Options{Anonymous: enabled, TokenTTL: time.Minute})
			if c, err := a.ask(t, ""); (err == nil) != enabled || enabled && c.User.GetName() != user.Anonymous {
				t.Errorf("enabled %v: %+v, %v", enabled, c, err)
			}
			if _, err := a.ask(t, "bad"); !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("enabled %v, a bad token: %v", enabled, err)
			}
		}
	})
}
