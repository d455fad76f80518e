package access

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

// heard receives the headers of requests.
type heard struct{ http.Header }

// RoundTrip implements http.RoundTripper.
func (h *heard) RoundTrip(req *http.Request) (*http.Response, error) {
	h.Header = req.Header
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// The name of an impersonated user arrives unchanged, or the request fails.
func TestImpersonating(t *testing.T) {
	way := &heard{}
	who := &user.DefaultInfo{Name: "jané", UID: "7", Groups: []string{"a", "b c"}, Extra: map[string][]string{"example.com/key": {"x", "y"}}}
	as, ok := Impersonating(who, way)
	if !ok {
		t.Fatal("refused")
	}
	if _, err := as.RoundTrip(httptest.NewRequest(http.MethodGet, "/", http.NoBody)); err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Impersonate-User": {"jané"}, "Impersonate-Uid": {"7"}, "Impersonate-Group": {"a", "b c"},
		"Impersonate-Extra-Example.com%2fkey": {"x", "y"},
	}
	if !reflect.DeepEqual(way.Header, want) {
		t.Errorf("%q, want %q", way.Header, want)
	}
	for name, who := range map[string]*user.DefaultInfo{
		"no name":            {},
		"space behind":       {Name: "admin "},
		"space before":       {Name: " admin"},
		"tab":                {Name: "admin\t"},
		"another header":     {Name: "bob\r\nImpersonate-Group: system:masters"},
		"empty group":        {Name: "bob", Groups: []string{""}},
		"group with a space": {Name: "bob", Groups: []string{"system:masters "}},
		"uid":                {Name: "bob", UID: "\x00"},
		"extra":              {Name: "bob", Extra: map[string][]string{"k": {" v"}}},
		"extra key":          {Name: "bob", Extra: map[string][]string{"Key": {"v"}}},
	} {
		if _, ok := Impersonating(who, way); ok {
			t.Errorf("%s: %+v is sent upstream", name, who)
		}
	}
}

// Requests share responses only if upstream could not distinguish their credentials.
func TestKeys(t *testing.T) {
	u := &user.DefaultInfo{Name: "u"}
	keys := map[string]string{}
	for name, c := range map[string]*Caller{
		"nobody":       anonymousCaller(http.Header{}),
		"basic":        anonymousCaller(http.Header{"Authorization": {"Basic a"}}),
		"other basic":  anonymousCaller(http.Header{"Authorization": {"Basic b"}}),
		"token":        tokenCaller(u, http.Header{"Authorization": {"Bearer a"}}),
		"other token":  tokenCaller(u, http.Header{"Authorization": {"Bearer b"}}),
		"two tokens":   tokenCaller(u, http.Header{"Authorization": {"Bearer a", "Bearer b"}}),
		"browser":      tokenCaller(u, http.Header{"Sec-Websocket-Protocol": {"Bearer a"}}),
		"certificate":  certificateCaller(u, &x509.Certificate{Raw: []byte("certificate a")}),
		"other owner":  certificateCaller(u, &x509.Certificate{Raw: []byte("certificate b")}),
		"joined token": tokenCaller(u, http.Header{"Authorization": {"Bearer aBearer b"}}),
	} {
		if other, ok := keys[c.Key()]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		keys[c.Key()] = name
	}
}
