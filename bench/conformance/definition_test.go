package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// gadgets is a custom resource whose definition changes.
type gadgets struct {
	collection
	t *testing.T
}

// newGadgets defines a resource for which there has been no request.
func newGadgets(t *testing.T, versions ...string) *gadgets {
	t.Helper()
	plural := strings.ReplaceAll(cluster.UniqueName("gadgets"), "-", "")
	g := &gadgets{collection{
		name: plural, root: "/apis/example.com/v1", resource: plural, kind: strings.ToUpper(plural[:1]) + plural[1:], namespaced: true, one: "one",
	}, t}
	g.define(versions...)
	t.Cleanup(g.remove)
	return g
}

// remove removes the definition.
func (g *gadgets) remove() {
	_, _ = write(context.WithoutCancel(g.t.Context()), http.MethodDelete, g.definition(), "")
}

func (g *gadgets) definition() string { return definitions + "/" + g.resource + ".example.com" }

func (g *gadgets) define(versions ...string) {
	g.t.Helper()
	crd := definition(g.kind, g.resource, "Namespaced", strings.Join(versions, ","))
	writeT(g.t, http.MethodPost, definitions, crd)
	await(g.t, get(g.all()), http.StatusOK)
}

// redefine replaces the versions of the definition.
func (g *gadgets) redefine(versions ...string) {
	g.t.Helper()
	writeT(g.t, http.MethodPatch, g.definition(), `{"spec":{"versions":[`+strings.Join(versions, ",")+`]}}`)
}

func (g *gadgets) add(name, color string) {
	g.t.Helper()
	o := object{of: &g.collection, namespace: "a", name: name, fields: map[string]any{"spec": map[string]any{"color": color}}}
	o.createT(g.t)
}

// compared checks that both servers answer a request alike, and returns the source of the proxy's
// answer.
func (g *gadgets) compared(target string) source {
	g.t.Helper()
	want, got, err := row{request: get(target)}.ask(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	if want.Status == http.StatusTooManyRequests || got.Status == http.StatusTooManyRequests {
		return "nowhere" // upstream is initializing, and one of the two servers asked it too early
	}
	var open Rule
	if want.Status == http.StatusOK {
		open = SomeState(0)
	}
	if err := Compare(want, got, open); err != nil {
		g.t.Fatalf("%s: %v", target, err)
	}
	from, err := answers.of(g.t.Context(), got.Header)
	if err != nil {
		g.t.Fatal(err)
	}
	return from
}

// cached waits until the proxy answers from its cache. Until then it checks each answer. If the
// caches have only parts of resources, the proxy forwards all requests.
func (g *gadgets) cached(target string) {
	g.t.Helper()
	path, _, _ := strings.Cut(target, "?")
	// The apiserver's own cache of this version may have just started.
	must(g.t, apiserver, get(path+"?limit=1"), http.StatusOK)
	if inParts {
		g.compared(target)
		return
	}
	cluster.Eventually(g.t, target+" is answered from the cache", func() bool { return cache.matches(g.compared(target)) })
}

// ended reads a watch to its end, which must be clean.
func (g *gadgets) ended(s *stream) {
	g.t.Helper()
	timeout := time.After(cluster.Limit)
	for {
		select {
		case e, ok := <-s.lines:
			if !ok {
				if s.err != nil {
					g.t.Errorf("%s: the watch ended with %v", s.name, s.err)
				}
				return
			}
			if e.Type == "ERROR" {
				g.t.Errorf("%s: %s", s.name, e.Line)
			}
		case <-timeout:
			g.t.Fatalf("%s: the watch did not end within %v", s.name, cluster.Limit)
		}
	}
}

// same checks several times that every response equals the apiserver's, whether it comes from the
// cache or from upstream.
func (g *gadgets) same(targets ...string) {
	g.t.Helper()
	const times = 20
	for range times {
		for _, target := range targets {
			g.compared(target)
		}
	}
}

// sized returns a version with a default size, which the apiserver adds when it reads an object.
func sized(version string) string {
	return strings.Replace(version, `"color":{"type":"string"}`, `"color":{"type":"string"},"size":{"type":"integer","default":2}`, 1)
}

// A change of the schema changes the bytes of objects without changing their resourceVersions. Once
// upstream serves the new schema, the proxy no longer serves objects that it cached under the old
// schema.
func TestSchemaChange(t *testing.T) {
	t.Parallel()
	g := newGadgets(t, version("v1", true, ""))
	g.add("one", "red")
	g.cached(g.all() + "?resourceVersion=0")
	p := openPair(t, "changes", get(g.all()+"?watch=true&allowWatchBookmarks=true"), cache)

	g.redefine(sized(version("v1", true, "")))
	g.ended(p.want)
	g.ended(p.got)
	g.same(g.all()+"?resourceVersion=0", g.all(), g.in("a")+"/one?resourceVersion=0")
	g.cached(g.all() + "?resourceVersion=0")
	if got := must(t, proxied, get(g.in("a")+"/one?resourceVersion=0"), 200); !bytes.Contains(got.Body, []byte(`"size":2`)) {
		t.Errorf("the object is %s", got.Body)
	}
}

// The proxy reads selectable fields from the definition and follows changes in them.
func TestSelectableFieldsChange(t *testing.T) {
	t.Parallel()
	g := newGadgets(t, version("v1", true, ""), version("v2", false, ""))
	g.add("one", "red")
	g.add("two", "blue")
	red := "?resourceVersion=0&fieldSelector=spec.color%3Dred"
	g.cached(g.all() + "?resourceVersion=0")
	row{name: "not selectable yet", request: get(g.all() + red), status: 400, from: upstream}.run(t)
	g.redefine(version("v1", true, `,"selectableFields":[{"jsonPath":".spec.color"}]`), version("v2", false, ""))
	await(g.t, get(g.all()+red), http.StatusOK)
	g.same(g.all() + red)
	g.cached(g.all() + red)
	row{name: "not in the other version", request: get(strings.Replace(g.all(), "/v1/", "/v2/", 1) + red), status: 400, from: upstream}.run(t)
	// The apiserver's handler and the proxy follow the definitions separately, so each sees the change
	// at its own time. Their watches end when they have seen it.
	p := openPair(t, "changes", get(g.all()+"?watch=true"), cache)
	g.redefine(version("v1", true, ""), version("v2", false, ""))
	await(g.t, get(g.all()+red), http.StatusBadRequest)
	g.ended(p.want)
	g.ended(p.got)
	g.same(g.all() + red)
}

// The proxy no longer serves a removed version from the cache. The other versions continue.
func TestVersionRemoved(t *testing.T) {
	t.Parallel()
	g := newGadgets(t, version("v1", true, ""), version("v2", false, ""))
	g.add("one", "red")
	v2 := strings.Replace(g.all(), "/v1/", "/v2/", 1)
	g.cached(g.all() + "?resourceVersion=0")
	g.cached(v2 + "?resourceVersion=0")
	p := openPair(t, "changes", get(v2+"?watch=true"), cache)
	g.redefine(version("v1", true, ""), strings.Replace(version("v2", false, ""), `"served":true`, `"served":false`, 1))
	await(g.t, get(v2), http.StatusNotFound)
	g.ended(p.want)
	g.ended(p.got)
	g.same(v2+"?resourceVersion=0", v2, g.all())
	g.cached(g.all() + "?resourceVersion=0")
}

// When a definition is deleted, its objects are gone. A new definition of the same name begins
// without objects.
func TestDefinitionDeletedAndRecreated(t *testing.T) {
	t.Parallel()
	g := newGadgets(t, version("v1", true, ""))
	g.add("one", "red")
	g.cached(g.all() + "?resourceVersion=0")
	p := openPair(t, "changes", get(g.all()+"?watch=true"), cache)
	writeT(t, http.MethodDelete, g.definition(), "")
	await(g.t, get(g.all()), http.StatusNotFound)
	g.ended(p.got)
	p.want.close()
	g.same(g.all()+"?resourceVersion=0", g.all(), g.in("a")+"/one?resourceVersion=0")
	g.define(version("v1", true, ""))
	g.same(g.all()+"?resourceVersion=0", g.all(), g.in("a")+"/one?resourceVersion=0")
	g.add("two", "blue")
	g.cached(g.all())
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(must(t, proxied, get(g.all()), 200).Body, &list); err != nil || len(list.Items) != 1 {
		t.Errorf("%d objects: %v", len(list.Items), err)
	}
}

// The proxy caches the objects of a new definition from the first request on, even if there were
// requests for the resource before.
func TestDefinitionAppears(t *testing.T) {
	t.Parallel()
	plural := strings.ReplaceAll(cluster.UniqueName("late"), "-", "")
	target := "/apis/example.com/v1/" + plural
	row{name: "not there yet", request: get(target), status: 404, from: upstream}.run(t)
	writeT(t, http.MethodPost, definitions, definition(strings.ToUpper(plural[:1])+plural[1:], plural, "Cluster", version("v1", true, "")))
	g := &gadgets{collection{name: plural, root: "/apis/example.com/v1", resource: plural}, t}
	t.Cleanup(g.remove)
	await(g.t, get(g.all()), http.StatusOK)
	g.cached(target)
}

// refused reports whether the apiserver has refused a request of the proxy's feed. It fills its own
// cache of a new definition for some two seconds. If it is busy, it may then refuse waiting watches
// ("storage is (re)initializing"), to be sent again after a second. The proxy's readers do not wait
// for that.
func (g *gadgets) refused() bool {
	m := cluster.Metrics(must(g.t, admin, get("/metrics"), http.StatusOK).Body)
	of := func(labels ...string) float64 {
		return m.Sum("watchproxy_feed_requests_total", append(labels, fmt.Sprintf("resource=%q", g.resource))...)
	}
	return of() > of(`code="200"`)
}

// When the definition changes, all watches of its resource end, and their clients reconnect
// together. All of them see the new objects. A cache that upstream does not help to fill for a
// second leaves them to upstream, so make verify judges who answers (TestCrowdIsCached).
func TestCrowdAfterARedefinition(t *testing.T) {
	t.Parallel()
	reconnect(t, anywhere)
}

// reconnect redefines a resource under a crowd of watches.
func reconnect(t *testing.T, from source) {
	t.Helper()
	needsWhole(t)
	const crowd = 40
	g := newGadgets(t, version("v1", true, ""))
	g.add("one", "red")
	g.cached(g.all() + "?resourceVersion=0")
	watch := get(g.all() + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	open := func() []*stream {
		streams := make([]*stream, crowd)
		err := workload.Parallel(t.Context(), crowd, crowd, func(_ context.Context, i int) (err error) {
			streams[i], err = openStream(t.Context(), proxied, watch)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return streams
	}
	before := open()
	g.redefine(sized(version("v1", true, "")))
	for _, s := range before {
		g.ended(s)
	}
	after := open()
	if g.refused() {
		t.Log("upstream told the feed to come again later")
		from = anywhere
	}
	for _, s := range after {
		events, err := s.until(func(e Event) bool { return e.InitialEnd })
		if err != nil || len(events) != 2 || !bytes.Contains(events[0].Line, []byte(`"size":2`)) {
			t.Errorf("%d events, %v", len(events), err)
		}
		s.close()
		if err := from.check(t.Context(), answers, s.header); err != nil {
			t.Error(err)
		}
	}
	g.cached(g.all() + "?resourceVersion=0")
}
