package access

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/bench/conformance"
	apiobject "github.com/watchproxy/watchproxy/watchcache/object"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// comparedHeaders are those that must be the same in both answers.
var comparedHeaders = []string{
	"Content-Type", "Cache-Control", "Retry-After", "Warning", "Vary", "Allow", "Location", "Etag", "Www-Authenticate",
	"X-Content-Type-Options", "Content-Encoding",
}

// compare tells how the proxy's answer differs from the apiserver's, nil if it does not.
func compare(want, got answer) error {
	if got.status != want.status {
		return fmt.Errorf("status %d instead of %d\nwant %.500q\ngot  %.500q", got.status, want.status, want.body, got.body)
	}
	for _, name := range comparedHeaders {
		if w, g := want.header.Values(name), got.header.Values(name); !slices.Equal(w, g) {
			return fmt.Errorf("header %s is %q instead of %q", name, g, w)
		}
	}
	w, err := want.settled()
	if err != nil {
		return fmt.Errorf("the apiserver's answer: %w", err)
	}
	g, err := got.settled()
	if err != nil {
		return err
	}
	if !bytes.Equal(w, g) {
		return fmt.Errorf("bodies differ\n%s", excerpts(w, g))
	}
	return nil
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

// settled is what was sent, without the resourceVersions of lists and bookmarks: the two servers are asked at slightly
// different states of what else the apiserver stores.
func (a answer) settled() ([]byte, error) {
	switch {
	case a.events != nil:
		return settledEvents(a.events)
	case a.status != ok:
		return a.body, nil
	case strings.HasPrefix(a.header.Get("Content-Type"), protobuf):
		return settledMessage(a.body)
	}
	return settledList(a.body)
}

func settledEvents(events []conformance.Event) (all []byte, err error) {
	for _, e := range events {
		line := e.Line
		switch {
		case e.Type != "BOOKMARK":
		case line[0] == '{':
			line = digits.ReplaceAll(line, []byte(`"resourceVersion":"RV"`))
		default:
			if line, err = settledFrame(line); err != nil {
				return nil, err
			}
		}
		all = append(all, line...)
	}
	return all, nil
}

var digits = regexp.MustCompile(`"resourceVersion":"\d+"`)

func settledList(body []byte) ([]byte, error) {
	if !gjson.GetBytes(body, "items").Exists() {
		return body, nil
	}
	for _, field := range []struct {
		path   string
		settle func(string) (string, error)
	}{
		{"metadata.resourceVersion", func(string) (string, error) { return "RV", nil }},
		{"metadata.continue", settledToken},
	} {
		found := gjson.GetBytes(body, field.path)
		if found.Index == 0 {
			continue
		}
		by, err := field.settle(found.Str)
		if err != nil {
			return nil, err
		}
		body = slices.Concat(body[:found.Index+1], []byte(by), body[found.Index+1+len(found.Str):])
	}
	return body, nil
}

var tokenRV = regexp.MustCompile(`"rv":\d+`)

// settledToken is a continue token without what differs between a cache and etcd: the slash before its key, too.
func settledToken(token string) (string, error) {
	plain, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", fmt.Errorf("continue token: %w", err)
	}
	return strings.Replace(string(tokenRV.ReplaceAll(plain, []byte(`"rv":RV`))), `"start":"/`, `"start":"`, 1), nil
}

// settledMessage shows a list in protobuf; any other message is shown as it is.
func settledMessage(body []byte) ([]byte, error) {
	envelope, err := openEnvelope(body)
	if err != nil || !strings.HasSuffix(envelope.Kind, "List") {
		return body, err
	}
	raw, items, err := apiobject.SplitProtoList(envelope.Raw)
	if err != nil {
		return nil, err
	}
	var meta metav1.ListMeta
	if err := meta.Unmarshal(raw); err != nil {
		return nil, err
	}
	if meta.ResourceVersion = "RV"; meta.Continue != "" {
		if meta.Continue, err = settledToken(meta.Continue); err != nil {
			return nil, err
		}
	}
	return fmt.Appendf(nil, "%v %v %q", envelope.TypeMeta, meta.String(), items), nil
}

// settledFrame shows a bookmark in protobuf.
func settledFrame(frame []byte) ([]byte, error) {
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame[4:]); err != nil {
		return nil, err
	}
	envelope, err := openEnvelope(event.Object.Raw)
	if err != nil {
		return nil, err
	}
	var object metav1.PartialObjectMetadata // the metadata is the first field of every object
	if err := object.Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	object.ResourceVersion = "RV"
	return fmt.Appendf(nil, "%s %v %v", event.Type, envelope.TypeMeta, object.ObjectMeta.String()), nil
}

func openEnvelope(body []byte) (envelope runtime.Unknown, err error) {
	raw, isOne := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !isOne {
		return envelope, fmt.Errorf("not protobuf: %.40q", body)
	}
	return envelope, envelope.Unmarshal(raw)
}

// decode reads an answer of 200 in JSON.
func decode(tb testing.TB, a answer, into any) {
	tb.Helper()
	if err := json.Unmarshal(a.body, into); err != nil || a.status/100 != 2 {
		tb.Fatalf("%d %.500s: %v", a.status, a.body, err)
	}
}
