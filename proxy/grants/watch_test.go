package grants

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// apiserver answers reviews. Without rights, it denies everything.
type apiserver struct {
	users  map[string]authenticationv1.UserInfo // by token
	rights map[string]bool                      // "USER VERB RESOURCE"
	down   bool
}

// RoundTrip implements http.RoundTripper.
func (s *apiserver) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if s.down || err != nil {
		return nil, errors.Join(errBroken, err)
	}
	review, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	switch r := review.(type) {
	case *authenticationv1.TokenReview:
		info, ok := s.users[r.Spec.Token]
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: info}
	case *authorizationv1.SubjectAccessReview:
		a := r.Spec.ResourceAttributes
		r.Status.Allowed = s.rights[r.Spec.User+" "+a.Verb+" "+a.Resource]
	}
	body, err = json.Marshal(review)
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: req,
	}, err
}

// access returns an Access that remembers outcomes for a minute.
func (s *apiserver) access(t *testing.T) *access.Access {
	t.Helper()
	a, err := access.New(&rest.Config{Host: "https://upstream", Transport: s}, nil,
		access.Options{TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Minute}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An open watch ends when its sender loses the token, the right to the resource, or the right to
// impersonate, and when the impersonated user loses the right. It goes on while upstream does not
// answer. A narrowed watch only needs the same user still, because its namespaces are reviewed
// elsewhere.
func TestRight(t *testing.T) {
	as := func(impersonated string) http.Header {
		h := http.Header{"Authorization": {"Bearer token"}}
		if impersonated != "" {
			h.Set("Impersonate-User", impersonated)
		}
		return h
	}
	amy := func(group string) authenticationv1.UserInfo {
		return authenticationv1.UserInfo{Username: "amy", Groups: []string{group}}
	}
	for name, test := range map[string]struct {
		header   http.Header
		narrowed bool
		change   func(*apiserver)
		want     error // nil: goes on
	}{
		"nothing":                      {as(""), false, func(*apiserver) {}, nil},
		"token":                        {as(""), false, func(s *apiserver) { delete(s.users, "token") }, exchange.ErrRevoked},
		"right":                        {as(""), false, func(s *apiserver) { delete(s.rights, "amy watch configmaps") }, exchange.ErrRevoked},
		"upstream":                     {as(""), false, func(s *apiserver) { s.down = true }, access.ErrUnavailable},
		"impersonated, nothing":        {as("bob"), false, func(*apiserver) {}, nil},
		"impersonated, own right":      {as("bob"), false, func(s *apiserver) { delete(s.rights, "amy watch configmaps") }, nil},
		"impersonated, right":          {as("bob"), false, func(s *apiserver) { delete(s.rights, "bob watch configmaps") }, exchange.ErrRevoked},
		"impersonated, to impersonate": {as("bob"), false, func(s *apiserver) { delete(s.rights, "amy impersonate users") }, exchange.ErrRevoked},
		"narrowed, right":              {as(""), true, func(s *apiserver) { delete(s.rights, "amy watch configmaps") }, nil},
		"narrowed, token":              {as(""), true, func(s *apiserver) { delete(s.users, "token") }, exchange.ErrRevoked},
		"narrowed, group":              {as(""), true, func(s *apiserver) { s.users["token"] = amy("late") }, exchange.ErrRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &apiserver{users: map[string]authenticationv1.UserInfo{"token": amy("early")}, rights: map[string]bool{
					"amy watch configmaps": true, "bob watch configmaps": true, "amy impersonate users": true,
				}}
				a := s.access(t)
				what := exchange.Asked{Route: exchange.Route{GVR: cachetest.Resource().GVR, Verb: "watch"}}
				req := exchange.Request{Header: test.header, Identity: new(access.Caller)}
				sender := req.Credentials()
				var n *Narrowing
				if test.narrowed {
					caller, err := a.Authenticate(sender.AsHTTP(t.Context()))
					if err != nil {
						t.Fatal(err)
					}
					if n, err = New(Config{View: &exchange.View{Name: "v"}, Asked: what, User: caller.User}); err != nil {
						t.Fatal(err)
					}
				}
				again := Right{a, sender, what, n}
				if err := again.Review(t.Context()); err != nil {
					t.Fatalf("it does not begin: %v", err)
				}
				test.change(s)
				time.Sleep(2 * time.Minute) // until all outcomes are forgotten
				if err := again.Review(t.Context()); !errors.Is(err, test.want) {
					t.Errorf("%v instead of %v", err, test.want)
				}
			})
		})
	}
}
