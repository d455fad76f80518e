package access

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// impersonations are headers with which a caller that has an impersonator's rights acts as another
// user.
var impersonations = map[string]http.Header{
	"a group": impersonating("target", targetGroup),
	"all of it": {
		"Impersonate-User": {"target"}, "Impersonate-Group": {targetGroup}, "Impersonate-Uid": {"some-uid"},
		"Impersonate-Extra-Scopes": {"one", "two"},
	},
	"lower case": {
		"impersonate-user": {"target"}, "impersonate-group": {targetGroup}, "impersonate-extra-scopes": {"one"},
	},
	"refused user":  impersonating("admin", "system:masters"),
	"refused group": impersonating("reader", "system:masters"),
	"refused extra": {"Impersonate-User": {"reader"}, "Impersonate-Extra-Other": {"x"}},
	"two users":     {"Impersonate-User": {"reader", "admin"}},
	"no user":       {"Impersonate-Group": {targetGroup}},
	"only a uid":    {"Impersonate-Uid": {"some-uid"}},
	"empty user":    {"Impersonate-User": {""}},
	"credential id": {"Impersonate-User": {"reader"}, "Impersonate-Extra-Authentication.kubernetes.io%2fcredential-Id": {"X509SHA256=00"}},
}

// tricks are headers that mean nothing to an apiserver, but could mean something to a proxy in
// front of it.
var tricks = map[string]http.Header{
	"a front proxy's": {"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}},
	"another proxy's": {"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-User": {"admin"}, "Forwarded": {"for=127.0.0.1"}},
}

// A forwarded request arrives with the identity of the caller, or of a user that the caller may
// impersonate.
func TestForwardedIdentity(t *testing.T) {
	w := sharedWorld(t)
	f := openFront(t)
	const pod = "forwarded"
	startKubelet(t, w, pod)
	for _, name := range []string{"reader", "robot", "certificate", "anonymous", "nobody", "certified nobody", "certificate and token", "token as reader", "certificate as reader"} {
		c := w.callers[name]
		said := maps.Clone(tricks)
		said["nobody else"], said["a user"] = nil, impersonating("reader")
		if strings.HasSuffix(name, "as reader") {
			maps.Copy(said, impersonations)
		}
		for what, header := range said {
			t.Run(name+"/"+what, func(t *testing.T) {
				w.checkIdentity(t, f, c.as(header), pod)
			})
		}
	}
}

// checkIdentity sends every kind of forwarded request to the apiserver and through the proxy.
func (w *world) checkIdentity(t *testing.T, f *front, c *caller, pod string) {
	t.Helper()
	const (
		configs = "/api/v1/namespaces/" + teamA + "/configmaps"
		pods    = "/api/v1/namespaces/" + teamA + "/pods"
		table   = "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json" // the cache has v1 only
	)
	for _, r := range []request{
		{method: http.MethodPost, target: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`},
		{method: http.MethodPost, target: configs, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"MADE"}}`},
		{target: configs + "/MADE"},
		{method: http.MethodDelete, target: configs + "/MADE"},
		{target: pods + "/" + pod + "/status"},
		{target: pods, accept: table},
		{target: pods + "?watch=1&timeoutSeconds=60", accept: table},
		{target: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{target: "/openapi/v3/version"},
		{target: "/version"},
	} {
		w.audit.SkipT(t)
		first, direct := r.making("made-direct").named()
		second, forwarded := r.making("made-forwarded").named()
		second.protocol = cluster.DrawProtocol(c.name, r.target)
		wantStatus, want := w.server.begin(t, c, first)
		gotStatus, got := f.begin(t, c, second)
		got = strings.ReplaceAll(got, "made-forwarded", "made-direct")
		if gotStatus != wantStatus || wantStatus >= http.StatusBadRequest && got != want {
			t.Errorf("%s %s: %d %.300q instead of %d %.300q", r.method, r.target, gotStatus, got, wantStatus, want)
			continue
		}
		if wantStatus < http.StatusBadRequest { // otherwise the proxy may have answered itself, and no user has done anything
			w.sameIdentity(t, c, r, direct, forwarded)
		}
	}
	if got := w.server.must(t, c, request{target: pods + "/" + pod + "?resourceVersion=0"}); got.status != ok {
		return // the caller must not be able to do more
	}
	for _, target := range []string{pods + "/" + pod + "/exec?command=x&stdin=1", pods + "/" + pod + "/portforward"} {
		w.audit.SkipT(t)
		first, direct := request{method: http.MethodPost, target: target}.named()
		second, forwarded := request{method: http.MethodPost, target: target}.named()
		w.server.upgrade(t, c, first)
		f.upgrade(t, c, second)
		w.sameIdentity(t, c, first, direct, forwarded)
	}
}

// making returns the request with a name for the object inserted.
func (r request) making(name string) request {
	r.target, r.body = strings.ReplaceAll(r.target, "MADE", name), strings.ReplaceAll(r.body, "MADE", name)
	return r
}

// begin returns the status of an answer and, if it is an error, the body. It does not read other
// bodies, because a watch would take too long.
func (s *server) begin(t *testing.T, c *caller, r request) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	resp, err := s.send(ctx, c, r)
	cluster.MustT(t, err)
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusBadRequest {
		return resp.StatusCode, ""
	}
	body, err := io.ReadAll(resp.Body)
	cluster.MustT(t, err)
	return resp.StatusCode, string(body)
}

// sameIdentity sends a request to the apiserver and through the proxy, and compares the users in
// the two audit records.
func (w *world) sameIdentity(t *testing.T, c *caller, r request, direct, forwarded string) {
	t.Helper()
	want, got := w.recorded(t, direct), w.recorded(t, forwarded)
	if identity(want.Effective()) != identity(got.Effective()) {
		t.Errorf("%s %s: it acts as\n%s instead of\n%s", r.method, r.target, identity(got.Effective()), identity(want.Effective()))
	}
	user := identity(want.User)
	if c.cert != nil {
		if user = proxyUser; got.User.Username == user {
			return
		}
	}
	if identity(got.User) != user {
		t.Errorf("%s %s: it arrives as\n%s instead of\n%s", r.method, r.target, identity(got.User), user)
	}
}
