package allowed

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
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
	first, second := user("first"), user("second")
	s.allow(first, "configs", a, b)
	s.allow(second, "configs", b, c)
	gone := func(what string, of caller, token string, may ...string) {
		t.Helper()
		answer := s.ask(of, following(token), may...)
		if answer.Status != http.StatusGone && answer.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %.300s", what, answer.Status, answer.Body)
		}
	}
	page := s.list(first, mine+"?limit=2", a, b)
	token := page.Continue
	rest, seal, _ := strings.Cut(token, ".")
	if len(page.items) != 2 || seal == "" {
		t.Fatalf("%d objects, token %q", len(page.items), token)
	}
	other := s.list(second, mine+"?limit=2", b, c).Continue
	_, otherSeal, _ := strings.Cut(other, ".")
	upstream, _, err := listed(t.Context(), w.api, w.adminCaller(), cluster.Get(configmaps.path("")+"?limit=2"))
	s.must(err)
	whole, _, err := listed(t.Context(), s.Endpoint, w.adminCaller(), cluster.Get(mine+"?limit=2"))
	s.must(err)
	gone("a token of another user", second, token)
	s.ask(first, following(strings.Replace(other, otherSeal, seal, 1)), a, b) // the seal is no signature
	gone("a token without its seal", first, rest)
	gone("a token with an empty seal", first, rest+".")
	gone("a token with the seal of another", first, rest+"."+otherSeal)
	gone("a token with a changed seal", first, rest+"."+strings.Repeat("A", len(seal)))
	gone("a token with two seals", first, token+"."+seal)
	gone("upstream's token", first, upstream.Continue)
	gone("upstream's token of a user without rights", user("nothing"), upstream.Continue)
	gone("an admin's token", first, whole.Continue)
	gone("a token of a user without rights", user("nothing"), token)
	gone("a sealed token of an admin", w.adminCaller(), token)
	// A forged start shows no more than the user may read.
	for _, start := range []string{"", "/", "/" + c, "/" + c + "/", c, "/\x00"} {
		forged, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": json.Number(page.ResourceVersion), "start": start})
		s.must(err)
		s.ask(first, following(base64.RawURLEncoding.EncodeToString(forged)+"."+seal), a, b)
	}
	if l := s.list(first, following(token).Target, a, b); len(l.items) != 2 {
		t.Errorf("the second page has %d objects", len(l.items))
	}

	// ends waits until the token ends. Until then, the pages show what they have shown before.
	ends := func(when, token string, may ...string) {
		t.Helper()
		cluster.Eventually(t, "the token ends after "+when, func() bool {
			answer := s.ask(first, following(token), may...)
			if answer.Status != http.StatusOK && answer.Status != http.StatusGone {
				t.Fatalf("%d %.300s", answer.Status, answer.Body)
			}
			return answer.Status == http.StatusGone
		})
	}
	s.allow(first, "configs", c)
	ends("a grant", token, a, b)
	whole3 := s.list(first, mine, a, b, c)
	if len(whole3.items) != 3*each {
		t.Errorf("%d objects after the grant", len(whole3.items))
	}
	token = s.list(first, mine+"?limit=2", a, b, c).Continue
	s.forbid(first, "configs", b)
	ends("a revocation", token, a, b, c)
	if l := s.list(first, mine, a, c); len(l.items) != 2*each {
		t.Errorf("%d objects after the revocation", len(l.items))
	}
	s.allow(first, "configs", b)
	cluster.Eventually(t, "the token counts again", func() bool { return s.ask(first, following(token), a, b, c).Status == http.StatusOK })
}

// Pages of a list continue while others read and write.
func TestPagesGoOn(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	const objects = 6
	s := w.team(t, mindful(t), 1, objects)
	third := user("third")
	s.allow(third, "pods", s.names...)
	s.must(w.create(t.Context(), pods, s.names[0], object(pods, "one-"+s.marks[s.names[0]], "web", s.marks[s.names[0]])))
	s.must(w.create(t.Context(), pods, s.names[0], object(pods, "two-"+s.marks[s.names[0]], "web", s.marks[s.names[0]])))
	target := "/views/pods" + pods.path("")
	for i := range 5 {
		page := s.list(third, target+"?limit=1", s.names...)
		s.must(w.writesElsewhere(t.Context()))
		if _, _, err := listed(t.Context(), s.Endpoint, w.adminCaller(), cluster.Get(target+"?limit=1")); err != nil {
			t.Fatal(err)
		}
		a := s.ask(third, cluster.Get(fmt.Sprintf("%s?limit=1&continue=%s", target, url.QueryEscape(page.Continue))), s.names...)
		if a.Status != http.StatusOK {
			t.Fatalf("the second page of list %d: %d %.300s", i, a.Status, a.Body)
		}
	}
}
