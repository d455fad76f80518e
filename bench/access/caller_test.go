package access

import (
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// These are users and groups of certificates, and other names that are used several times.
const (
	certified     = "certified"
	impersonators = "impersonators"
	targetGroup   = "targets"
	robotUser     = "system:serviceaccount:" + teamA + ":robot"
)

// caller is a client with some kind of credentials.
type caller struct {
	name   string
	token  string
	cert   *tls.Certificate
	header http.Header // further headers
	// answers are the apiserver's possible decisions for this caller in the matrix. Each of them
	// must occur.
	answers []int
	// uncached is for callers whose requests the cache never answers.
	uncached bool
	// hotOnly makes the matrix ask a proxy with full caches only.
	hotOnly bool
	probe   string // a read that the apiserver allows once it knows the caller's rights
}

// as returns the caller with further headers, for impersonation.
func (c caller) as(header http.Header) *caller {
	c.header = header
	return &c
}

func impersonating(user string, groups ...string) http.Header {
	h := http.Header{"Impersonate-User": {user}}
	for _, g := range groups {
		h.Add("Impersonate-Group", g)
	}
	return h
}

const (
	ok        = http.StatusOK
	forbidden = http.StatusForbidden
	missing   = http.StatusNotFound
	unknown   = http.StatusUnauthorized
)

// newCallers returns one caller of each kind.
func (w *world) newCallers(tb testing.TB) map[string]*caller {
	tb.Helper()
	const day = 24 * time.Hour
	const (
		podsA   = "/api/v1/namespaces/" + teamA + "/pods"
		configB = "/api/v1/namespaces/" + teamB + "/configmaps"
		podsOf  = "/api/v1/pods?fieldSelector=spec.nodeName%3D"
	)
	carla := w.ca.SignT(tb, day, "carla", certified)
	stranger := w.foreign.SignT(tb, day, "admin", "system:masters")
	some := []int{ok, forbidden}
	refused := []int{unknown}
	all := []*caller{
		{name: "admin", token: w.api.Token, answers: []int{ok}, probe: podsA},
		{name: "reader", token: tokenOf("reader"), answers: some, probe: podsA},
		{name: "one", token: tokenOf("one"), answers: []int{ok, forbidden}, probe: podsA + "?fieldSelector=metadata.name%3Done"},
		{name: "verbs", token: tokenOf("verbs"), answers: []int{ok, forbidden}, probe: podsA},
		{name: "node", token: tokenOf(nodeUser), answers: some, probe: podsOf + "n1"},
		{name: "nobody", token: tokenOf("nobody"), answers: []int{forbidden}, hotOnly: true},
		{name: "dangling", token: tokenOf("dangling"), answers: []int{forbidden}, hotOnly: true},
		{name: "anonymous", answers: some, probe: configB, uncached: true},
		{name: "basic", header: http.Header{"Authorization": {"Basic YTpi"}}, answers: some, probe: configB, hotOnly: true, uncached: true},
		{name: "garbage", token: "garbage", answers: refused, hotOnly: true},
		{name: "no token", header: http.Header{"Authorization": {"Bearer "}}, answers: some, probe: configB, hotOnly: true, uncached: true},
		{name: "expired", token: w.robotToken(tb, w.saKey, -time.Hour), answers: refused, hotOnly: true},
		{name: "forged", token: w.robotToken(tb, cluster.NewKeyT(tb), day), answers: refused, hotOnly: true},
		{name: "signed here", token: w.robotToken(tb, w.saKey, day), answers: some, probe: podsA, hotOnly: true}, // shows that the signing is right, so that the two above fail only for the intended reason
		{name: "for others", token: w.requestToken(tb, teamA, "robot", "others"), answers: refused, hotOnly: true},
		{name: "robot", token: w.requestToken(tb, teamA, "robot"), answers: some, probe: podsA, hotOnly: true},
		{name: "mate", token: w.requestToken(tb, teamB, "robot"), answers: some, probe: configB, hotOnly: true},
		{name: "certificate", cert: carla, answers: some, probe: podsA},
		{name: "certified node", cert: w.ca.SignT(tb, day, "system:node:n2", "system:nodes"), answers: some, probe: podsOf + "n2"},
		{name: "certified nobody", cert: w.ca.SignT(tb, day, "nobody"), answers: []int{forbidden}, hotOnly: true},
		{name: "certified oddity", cert: w.ca.SignT(tb, day, `Ödön <b>&"`), answers: []int{forbidden}, hotOnly: true},
		{name: "expired certificate", cert: w.ca.SignT(tb, -time.Hour, "carla", certified), answers: refused, hotOnly: true},
		{name: "stranger", cert: stranger, answers: refused, hotOnly: true},
		{name: "certificate and token", cert: carla, token: w.api.Token, answers: some, probe: podsA, hotOnly: true},
		{name: "certificate and garbage", cert: carla, token: "garbage", answers: some, probe: podsA, hotOnly: true},
		{name: "stranger with token", cert: stranger, token: tokenOf("reader"), answers: some, probe: podsA, hotOnly: true},
	}
	impersonator := caller{token: tokenOf("impersonator"), hotOnly: true}
	ivan := caller{cert: w.ca.SignT(tb, day, "ivan", impersonators), hotOnly: true}
	for _, by := range []struct {
		name string
		*caller
	}{{"token", &impersonator}, {"certificate", &ivan}} {
		for as, header := range map[string]http.Header{
			"reader": impersonating("reader"), "target": impersonating("target", targetGroup),
			"robot": impersonating(robotUser), "all of it": impersonations["all of it"],
		} {
			c := by.as(header)
			c.name, c.probe, c.answers = by.name+" as "+as, podsA, some
			all = append(all, c)
		}
		for as, header := range map[string]http.Header{
			"admin": impersonating("admin"), "reader of another group": impersonating("reader", "system:masters"),
			"robot of another group": impersonating(robotUser, certified), "another account": impersonating("system:serviceaccount:" + teamA + ":leaver"),
			"node": impersonating(nodeUser), "reader with another extra": impersonations["refused extra"],
		} {
			c := by.as(header)
			c.name, c.answers = by.name+" as "+as, []int{forbidden}
			all = append(all, c)
		}
	}
	constrained := (&caller{token: tokenOf("constrained"), uncached: true, hotOnly: true}).as(impersonating("reader"))
	constrained.name, constrained.probe, constrained.answers = "constrained as reader", podsA, some
	all = append(all, constrained)
	callers := map[string]*caller{}
	for _, c := range all {
		callers[c.name] = c
	}
	return callers
}

// requestToken requests a token of a service account from the apiserver.
func (w *world) requestToken(tb testing.TB, namespace, name string, audiences ...string) string {
	tb.Helper()
	r, err := w.admin.CoreV1().ServiceAccounts(namespace).CreateToken(tb.Context(), name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("token of %s/%s: %v", namespace, name, err)
	}
	return r.Status.Token
}
