package access

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// compare returns an error that describes how the proxy's answer differs from the apiserver's, or
// nil.
func compare(want, got answer) error {
	var open conformance.Rule
	if len(want.body) > 0 {
		open = someList
	}
	return conformance.Compare(want.settled(), got.settled(), open)
}

// settled returns the answer without the resourceVersions of bookmarks. The two servers answer at
// slightly different times, and the apiserver may store other objects in between.
func (a answer) settled() cluster.Answer {
	header, body := a.header.Clone(), a.body
	header.Del("Audit-Id")
	for _, e := range a.events {
		body = append(body, conformance.Settled(e)...)
	}
	return cluster.Answer{Status: a.status, Header: header, Body: body}
}

// someList is the rule for lists. A cache may have another resourceVersion than etcd. In continue
// tokens, caches write a slash before the key and etcd does not.
func someList(body []byte) ([]byte, error) {
	if !gjson.GetBytes(body, "items").Exists() {
		return body, nil
	}
	body, err := conformance.SomeState(0)(body)
	return bytes.Replace(body, []byte(`"start":"/`), []byte(`"start":"`), 1), err
}

// decode decodes a JSON answer, whose status must be 200.
func decode(tb testing.TB, a answer, into any) {
	tb.Helper()
	if err := json.Unmarshal(a.body, into); err != nil || a.status/100 != 2 {
		tb.Fatalf("%d %.500s: %v", a.status, a.body, err)
	}
}
