package allowed

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func following(token string) cluster.Request {
	return cluster.Get(mine + "?limit=2&continue=" + url.QueryEscape(token))
}

// A continue token counts only for its user, and only while the user may read the same namespaces.
func TestTokens(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	const each = 2
	s := w.team(t, forgetful(t), 3, each)
	a, b, c := s.names[0], s.names[1], s.names[2]
	first, second, nothing := user("first"), user("second"), user("nothing")
	s.allow(first, "configs", a, b)
	s.allow(second, "configs", b, c)
	begin := func(of caller, may ...string) string {
		t.Helper()
		return s.list(of, mine+"?limit=2", may...).Continue
	}
	page := s.list(first, mine+"?limit=2", a, b)
	token, other := page.Continue, begin(second, b, c)
	rest, seal, _ := strings.Cut(token, ".")
	_, otherSeal, _ := strings.Cut(other, ".")
	if len(page.items) != 2 || seal == "" {
		t.Fatalf("%d objects, token %q", len(page.items), token)
	}
	upstream, _, err := listed(t.Context(), w.api, w.adminCaller(), cluster.Get(configmaps.path("")+"?limit=2"))
	s.must(err)
	whole, _, err := listed(t.Context(), s.Endpoint, w.adminCaller(), cluster.Get(mine+"?limit=2"))
	s.must(err)
	for _, test := range []struct {
		what  string
		of    caller
		token string
	}{
		{"of another user", second, token},
		{"without its seal", first, rest},
		{"with an empty seal", first, rest + "."},
		{"with the seal of another", first, rest + "." + otherSeal},
		{"with a changed seal", first, rest + "." + strings.Repeat("A", len(seal))},
		{"with two seals", first, token + "." + seal},
		{"of upstream", first, upstream.Continue},
		{"of upstream, by a user without rights", nothing, upstream.Continue},
		{"of an admin", first, whole.Continue},
		{"by a user without rights", nothing, token},
		{"with a seal, by an admin", w.adminCaller(), token},
	} {
		if got := s.ask(test.of, following(test.token)); got.Status != http.StatusGone && got.Status != http.StatusBadRequest {
			t.Errorf("a token %s: %d %.300s", test.what, got.Status, got.Body)
		}
	}
	// The seal is no signature. A forged start shows no more than the user may read.
	s.ask(first, following(strings.Replace(other, otherSeal, seal, 1)), a, b)
	for _, start := range []string{"", "/", "/" + c, "/" + c + "/", c, "/\x00"} {
		forged, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": json.Number(page.ResourceVersion), "start": start})
		s.must(err)
		s.ask(first, following(base64.RawURLEncoding.EncodeToString(forged)+"."+seal), a, b)
	}
	if l := s.list(first, following(token).Target, a, b); len(l.items) != 2 {
		t.Errorf("the second page has %d objects", len(l.items))
	}

	// becomes waits for another answer to the token. Until then, the pages show what they have shown before.
	becomes := func(status int, may ...string) {
		t.Helper()
		cluster.Eventually(t, "another answer", func() bool {
			got := s.ask(first, following(token), may...).Status
			if got != http.StatusOK && got != http.StatusGone {
				t.Fatalf("the token is answered by %d", got)
			}
			return got == status
		})
	}
	s.allow(first, "configs", c)
	becomes(http.StatusGone, a, b)
	if l := s.list(first, mine, a, b, c); len(l.items) != 3*each {
		t.Errorf("%d objects after the grant", len(l.items))
	}
	token = begin(first, a, b, c)
	s.forbid(first, "configs", b)
	becomes(http.StatusGone, a, b, c)
	if l := s.list(first, mine, a, c); len(l.items) != 2*each {
		t.Errorf("%d objects after the revocation", len(l.items))
	}
	s.allow(first, "configs", b)
	becomes(http.StatusOK, a, b, c)
}
