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
	garbled          func(*http.Response) // spoils responses; nil: they stay
	hold             chan struct{}        // responses wait until it is closed; nil: they do not wait
	metrics          *prometheus.Registry
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
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(answer)
	resp := w.Result()
	if j.garbled != nil {
		j.garbled(resp)
	}
	return resp, nil
}

func newTrial(t *testing.T, options Options) (*Access, *judge) {
	t.Helper()
	j := &judge{metrics: prometheus.NewRegistry()}
	a, err := New(&rest.Config{Host: "https://upstream", Transport: j}, nil, options, j.metrics)
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
// outcomes are remembered. A metric counts the reviews.
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
		families, err := j.metrics.Gather()
		if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 2 {
			t.Fatalf("%v, %v", families, err)
		}
		for _, m := range families[0].GetMetric() {
			if n := m.GetHistogram().GetSampleCount(); n != 2 || m.GetLabel()[0].GetValue() != "201" {
				t.Errorf("%d reviews: %v", n, m)
			}
		}
	})
}

// body replaces the body of a response.
func body(text string, end error) func(*http.Response) {
	return func(resp *http.Response) {
		resp.Body, resp.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(text), iotest.ErrReader(end))), -1
	}
}

// failing makes reviews fail with a status.
func failing(code int) func(*http.Response) {
	return func(resp *http.Response) {
		body(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden"}`, io.EOF)(resp)
		resp.StatusCode = code
	}
}

// If a review fails, breaks off or is none, the client is not admitted, but this does not count as a refusal:
// neither of a new token nor of one that is known. It is not remembered.
func TestFailedReviews(t *testing.T) {
	for name, garbled := range map[string]func(*http.Response){
		"is forbidden": failing(http.StatusForbidden),
		"is not found": failing(http.StatusNotFound),
		"conflicts":    failing(http.StatusConflict),
		"breaks off":   body(`{"kind":`, io.ErrUnexpectedEOF),
		"ends early":   body(`{"kind":`, io.EOF),
		"is empty":     body("", io.EOF),
		"is a page": func(resp *http.Response) {
			body("<html>", io.EOF)(resp)
			resp.Header.Set("Content-Type", "text/html")
			resp.StatusCode = http.StatusOK
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, j := newTrial(t, Options{Anonymous: true, TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Minute})
				ask := func(when string, want error) {
					t.Helper()
					c, err := a.ask(t, "good")
					decision, _, decided := a.Authorize(t.Context(), reading("good"))
					if !errors.Is(err, want) || !errors.Is(decided, want) || (c != nil) != (want == nil) || (decision == authorizer.DecisionAllow) != (want == nil) {
						t.Errorf("%s: %+v, %v; %v, %v", when, c, err, decision, decided)
					}
					synctest.Wait()
				}
				j.garbled = garbled
				ask("at first", ErrUnavailable)
				j.garbled = nil
				ask("afterwards", nil)
				j.garbled = garbled
				time.Sleep(50 * time.Second)
				ask("when the renewal begins", nil)
				ask("while it is renewed", nil)
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
