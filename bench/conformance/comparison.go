package conformance

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// comparedHeaders are the headers that must be the same in both responses. They do not include
// Date, the ids of the apiserver's flow control, and the headers for the length of the body
// (Content-Length or chunks).
var comparedHeaders = []string{
	"Content-Type", "Cache-Control", "Retry-After", "Warning", "Vary", "Allow", "Location", "Etag", "Www-Authenticate",
	"X-Content-Type-Options", "Content-Encoding",
}

// Rule removes the parts of a body that the contract leaves open. It returns an error if the body
// itself violates the contract.
type Rule func(body []byte) ([]byte, error)

// SomeState is the rule for lists without an exact resourceVersion. They may show any state that is
// not older than rv. Only the digits of the list's own resourceVersion may differ, in its metadata
// and in its continue token.
func SomeState(rv uint64) Rule {
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

// ExactPage is the rule for pages at an exact resourceVersion. The apiserver's cache answers them
// while it has that state; after that, etcd does. In continue tokens from the cache, keys have a
// leading slash; in tokens from etcd, they have none.
func ExactPage(body []byte) ([]byte, error) {
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

func replaceAt(body []byte, at, length int, by string) []byte {
	return slices.Concat(body[:at], []byte(by), body[at+length:])
}

// Compare returns the difference between the proxy's response and the apiserver's, or nil if they
// are equal.
func Compare(want, got cluster.Answer, open Rule) error {
	if err := compareHeads(want, got); err != nil {
		return err
	}
	w, err := opened(want, open)
	if err != nil {
		return fmt.Errorf("the apiserver's answer: %w", err)
	}
	g, err := opened(got, open)
	if err != nil {
		return err
	}
	const head = 100 // bytes, which show the kind, except in YAML, whose keys are sorted
	if bytes.Contains(w[:min(head, len(w))], []byte(`"Table"`)) || open != nil && bytes.Contains(w, []byte(`"kind":"Table"`)) {
		if w, g, err = sameAges(w, g); err != nil {
			return err
		}
	}
	if !bytes.Equal(w, g) {
		return fmt.Errorf("bodies differ\n%s", excerpts(w, g))
	}
	return noLarger(want, got)
}

// compareHeads compares statuses and headers.
func compareHeads(want, got cluster.Answer) error {
	if got.Status != want.Status {
		return fmt.Errorf("status %d instead of %d\n%s", got.Status, want.Status, excerpts(want.Body, got.Body))
	}
	for _, name := range comparedHeaders {
		if w, g := want.Header.Values(name), got.Header.Values(name); !slices.Equal(w, g) {
			return fmt.Errorf("header %s is %q instead of %q", name, g, w)
		}
	}
	if id := got.Header.Values("Audit-Id"); len(id) != len(want.Header.Values("Audit-Id")) {
		return fmt.Errorf("header Audit-Id is %q, the apiserver's %q", id, want.Header.Values("Audit-Id"))
	}
	return nil
}

// excerpts returns the parts of two bodies where their difference begins.
func excerpts(want, got []byte) string {
	const around = 120
	at := 0
	for at < len(want) && at < len(got) && want[at] == got[at] {
		at++
	}
	cut := func(b []byte) []byte { return b[min(max(0, at-around), len(b)):min(len(b), at+2*around)] }
	return fmt.Sprintf("from byte %d on (of %d and %d)\nwant …%q…\ngot  …%q…", at, len(want), len(got), cut(want), cut(got))
}
