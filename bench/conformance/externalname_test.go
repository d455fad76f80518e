package conformance

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// A service keeps spec.internalTrafficPolicy when it becomes one of type ExternalName. The apiserver
// shows the field in the event of that write, but not in reads. The proxy's caches are filled by
// such events, and must not show it either.
func TestServiceBecomesExternalName(t *testing.T) {
	needsWhole(t)
	const policy = `"internalTrafficPolicy":"Cluster"`
	home := newNamespaces(t, "external", 1)[0]
	o := object{of: services, namespace: home, name: "s", fields: spec(`{"ports":[{"port":80}]}`)}
	inBothEncodings := func(rows ...row) {
		t.Helper()
		for _, r := range rows {
			for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
				each := r
				each.name, each.request = r.name+" "+accept, r.With("Accept", accept)
				checkAsIs(t, []row{each})
			}
		}
	}
	// A cache that a read has just started has no earlier history.
	inBothEncodings(row{name: "start", request: get(o.path() + "?resourceVersion=0"), status: 404, from: cache})
	created := o.createT(t)
	catchUp(t, services, created)
	inBothEncodings(row{name: "before", request: get(fmt.Sprintf("%s?resourceVersion=%d", o.path(), created)), status: 200, from: cache})
	watched := get(fmt.Sprintf("%s?watch=true&resourceVersion=%d&timeoutSeconds=60", services.in(home), created))
	live := openPair(t, "live", watched, cache)

	rv, err := o.patch(t.Context(), `{"spec":{"type":"ExternalName","externalName":"example.com"}}`)
	if err != nil {
		t.Fatal(err)
	}
	written := func(e Event) bool { return e.RV == rv }
	want, err := live.want.until(written)
	if err != nil || len(want) == 0 {
		t.Fatal(want, err)
	}
	if !bytes.Contains(want[0].Line, []byte(policy)) {
		t.Errorf("the apiserver's event: %s: the test does not test", want[0].Line)
	}
	got, err := live.got.until(written)
	if err != nil || len(got) == 0 {
		t.Fatal(got, err)
	}
	if bytes.Contains(got[0].Line, []byte(policy)) {
		t.Errorf("the proxy's event: %s", got[0].Line)
	}
	live.checkSource(t)
	inBothEncodings(
		row{name: "get", request: get(o.path() + "?resourceVersion=0"), status: 200, from: cache},
		row{name: "list", request: get(fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", services.in(home), rv)), status: 200, from: cache},
		row{name: "state", request: get(services.in(home) + "?watch=true&resourceVersion=0&timeoutSeconds=2"), status: 200, from: cache},
		row{name: "history", request: get(strings.Replace(watched.Target, "timeoutSeconds=60", "timeoutSeconds=2", 1)), status: 200, from: cache},
	)
}
