package conformance

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// comparedHeaders are those that must be the same in both answers. Date, the ids of the apiserver's flow control, and
// how the length of the body is told (Content-Length or chunks) are left out.
var comparedHeaders = []string{
	"Content-Type", "Cache-Control", "Retry-After", "Warning", "Vary", "Allow", "Location", "Etag",
	"X-Content-Type-Options", "Content-Encoding",
}

// rule is what the contract leaves open in a body. It returns the body without that, or an error if the body breaks the
// contract by itself.
type rule func(body []byte) ([]byte, error)

// same leaves nothing open.
func same(body []byte) ([]byte, error) { return body, nil }

// someState is the rule of lists that ask for no exact resourceVersion: whatever state they show is new enough, and
// not older than rv. Only the digits of the list's own resourceVersion may differ, there and in its continue token.
func someState(rv uint64) rule {
	return func(body []byte) ([]byte, error) {
		if gjson.GetBytes(body, "kind").Str == "Status" {
			return body, nil
		}
		found := gjson.GetBytes(body, "metadata.resourceVersion")
		at, err := strconv.ParseUint(found.Str, 10, 64)
		if err != nil || found.Index == 0 {
			return nil, fmt.Errorf("list without a resourceVersion: %.200s", body)
		}
		if at < rv {
			return nil, fmt.Errorf("list at %d is older than %d", at, rv)
		}
		open := replaceAt(body, found.Index+1, len(found.Str), "RV")
		token := gjson.GetBytes(open, "metadata.continue")
		if token.Str == "" {
			return open, nil
		}
		plain, err := base64.RawURLEncoding.DecodeString(token.Str)
		if err != nil {
			return nil, fmt.Errorf("continue token: %w", err)
		}
		own := fmt.Appendf(nil, `"rv":%d,`, at)
		if !bytes.Contains(plain, own) {
			return nil, fmt.Errorf("list at %d has the continue token %s", at, plain)
		}
		return replaceAt(open, token.Index+1, len(token.Str), string(bytes.Replace(plain, own, []byte(`"rv":RV,`), 1))), nil
	}
}

// exactPage is the rule of pages at an exact resourceVersion. The apiserver's cache answers them while it has that state,
// then etcd: in continue tokens, the one writes keys with a slash in front, the other without.
func exactPage(body []byte) ([]byte, error) {
	token := gjson.GetBytes(body, "metadata.continue")
	if token.Str == "" {
		return body, nil
	}
	plain, err := base64.RawURLEncoding.DecodeString(token.Str)
	if err != nil {
		return nil, fmt.Errorf("continue token: %w", err)
	}
	return replaceAt(body, token.Index+1, len(token.Str), strings.Replace(string(plain), `"start":"/`, `"start":"`, 1)), nil
}

// exact is the rule of a collection's pages at an exact resourceVersion.
func (c *collection) exact() rule {
	if c.uncached {
		return same // etcd answers them all
	}
	return exactPage
}

func replaceAt(body []byte, at, length int, by string) []byte {
	return slices.Concat(body[:at], []byte(by), body[at+length:])
}

var reached = regexp.MustCompile(`(Too large resource version: \d+, current: |too old resource version: \d+ \()\d+`)

// reach is the rule of answers that tell how far a cache has got, or how far back it goes.
func reach(body []byte) ([]byte, error) {
	if !reached.Match(body) {
		return nil, fmt.Errorf("does not tell how far the cache reaches: %.200s", body)
	}
	return reached.ReplaceAll(body, []byte("${1}RV")), nil
}

var drawn = regexp.MustCompile(`"retryAfterSeconds":[123]\b`)

// reachByLot is reach for watches of what the apiserver does not cache: it draws lots when to come again.
func reachByLot(body []byte) ([]byte, error) {
	body, err := reach(body)
	return drawn.ReplaceAll(body, []byte(`"retryAfterSeconds":N`)), err
}

// compare tells how the proxy's answer differs from the apiserver's, nil if it does not.
func compare(want, got reply, open rule) error {
	if got.status != want.status {
		return fmt.Errorf("status %d instead of %d\n%s", got.status, want.status, excerpts(want.body, got.body))
	}
	for _, name := range comparedHeaders {
		if w, g := want.header.Values(name), got.header.Values(name); !slices.Equal(w, g) {
			return fmt.Errorf("header %s is %q instead of %q", name, g, w)
		}
	}
	if id := got.header.Values("Audit-Id"); len(id) != len(want.header.Values("Audit-Id")) {
		return fmt.Errorf("header Audit-Id is %q, the apiserver's %q", id, want.header.Values("Audit-Id"))
	}
	w, err := opened(want, open)
	if err != nil {
		return fmt.Errorf("the apiserver's answer: %w", err)
	}
	g, err := opened(got, open)
	if err != nil {
		return err
	}
	if !bytes.Equal(w, g) {
		return fmt.Errorf("bodies differ\n%s", excerpts(w, g))
	}
	return noLarger(want, got)
}

// excerpts shows where two bodies part.
func excerpts(want, got []byte) string {
	const around = 120
	at := 0
	for at < len(want) && at < len(got) && want[at] == got[at] {
		at++
	}
	cut := func(b []byte) []byte { return b[min(max(0, at-around), len(b)):min(len(b), at+2*around)] }
	return fmt.Sprintf("from byte %d on (of %d and %d)\nwant …%q…\ngot  …%q…", at, len(want), len(got), cut(want), cut(got))
}

// listToken is the continue token of a list.
func listToken(r reply) string { return gjson.GetBytes(r.body, "metadata.continue").Str }
