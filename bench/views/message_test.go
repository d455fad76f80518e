package views

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

const (
	protobuf = "application/vnd.kubernetes.protobuf,application/json"
	// metadata in protobuf is what client-go's metadata informers ask for.
	partials = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// known are the types of messages.
var known = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}()

// gvk is the type of the resource's objects.
func (r *resource) gvk() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(r.apiVersion(), r.kind)
}

// inProtobuf reports whether the proxy can cut the resource's messages.
func (r *resource) inProtobuf() bool {
	return r.cached() && known.Recognizes(r.gvk()) && !strings.Contains(r.root, "alpha")
}

// opaque reports whether a path of the view may lead into a value that protobuf has in another form,
// or to the kind of a template, which protobuf does not have.
func (v *view) opaque() bool {
	return slices.ContainsFunc(v.paths, func(p path) bool {
		i := slices.IndexFunc(p, func(s step) bool { return slices.Contains([]string{"fieldsV1", "data", "parameters"}, s.key) })
		last := p[len(p)-1].key
		return i >= 0 && i < len(p)-1 || len(p) > 1 && (last == "kind" || last == "apiVersion")
	})
}

// typed decodes the tree of an object, without what protobuf does not have: kinds and apiVersions, also
// those of templates.
func typed(of schema.GroupVersionKind, t tree) (runtime.Object, error) {
	o, err := known.New(of)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(encode(nil, t), o); err != nil {
		return nil, err
	}
	encoded, err := o.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		return nil, err
	}
	again, err := known.New(of)
	if err != nil {
		return nil, err
	}
	return again, again.(interface{ Unmarshal(text []byte) error }).Unmarshal(encoded)
}

func untyped(o runtime.Object) runtime.Object {
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return o
}

// message decodes an object in protobuf.
func message(text []byte) (runtime.Object, error) {
	o, _, err := serializer.NewCodecFactory(known).UniversalDeserializer().Decode(text, nil, nil)
	return o, err
}

// Lists in protobuf have the same fields as the plain implementation keeps of the whole lists.
func TestMessages(t *testing.T) {
	w := sharedWorld(t)
	var lists, inJSON counter
	t.Run("resources", func(t *testing.T) {
		for _, r := range w.all {
			t.Run(r.name(), func(t *testing.T) {
				t.Parallel()
				random := rand.New(rand.NewPCG(cluster.Seed(), seedOf(r.name()+" messages")))
				const few = 8
				for _, v := range append(slices.Clone(r.views[viewsEach:]), drawFew(r.views[:viewsEach], few, random)...) {
					for _, accept := range []string{protobuf, partials} {
						of := &messages{view: v, accept: accept, target: r.path() + []string{"?resourceVersion=0", "", "?limit=3"}[random.IntN(3)], gzip: random.IntN(2) == 0}
						switch shown, err := of.check(t, w); {
						case err != nil:
							t.Errorf("%s, %s as %s: %v", v, of.target, accept, err)
						case shown:
							lists.add(1)
						default:
							inJSON.add(1)
						}
					}
				}
			})
		}
	})
	t.Logf("%d lists in protobuf, %d in JSON", lists.n, inJSON.n)
	if lists.n < inJSON.n {
		t.Error("these are too few: the test does not test")
	}
}

// messages is a list that is read in protobuf.
type messages struct {
	view           *view
	accept, target string
	gzip           bool
}

// check compares the list with the cut list without the view, until the objects do not change in
// between. It reports whether the list was in protobuf.
func (m *messages) check(t *testing.T, w *world) (shown bool, err error) {
	t.Helper()
	whole := &read{name: "whole", request: cluster.Get(m.view.of.path())}
	if m.accept == partials {
		whole.request = whole.request.With("Accept", strings.Replace(partial, "Metadata", "MetadataList", 1))
	}
	const tries = 20
	for range tries {
		before, _, err := w.readAll(t.Context(), whole, "", "")
		if err != nil {
			return false, err
		}
		items, raw, ok, err := m.read(t, w)
		if err != nil || !ok {
			return false, err
		}
		cut := m.view.cutItems(before)
		difference := m.differs(cut, items)
		if difference == nil {
			return true, leaksMessage(raw, cut)
		}
		after, _, err := w.readAll(t.Context(), whole, "", "")
		if err != nil {
			return false, err
		}
		if differs(before, after, "") == "" {
			return true, difference
		}
	}
	return false, fmt.Errorf("the objects changed %d times", tries)
}

// leaksMessage is leaks for protobuf. The tag and the length after a sentinel may be letters.
func leaksMessage(raw []byte, want tree) error {
	may := sentinels(encode(nil, want))
	for s := range sentinels(raw) {
		if !may[s] && !may[s[:len(s)-1]] && !may[s[:len(s)-2]] {
			return fmt.Errorf("the answer has %s: %.2000q", s, raw)
		}
	}
	return nil
}

// read reads all pages. It returns false if upstream has answered, or the messages cannot be cut.
func (m *messages) read(t *testing.T, w *world) (items []runtime.Object, raw []byte, ok bool, err error) {
	t.Helper()
	for next := ""; ; {
		r := cluster.Get(m.view.at(m.target+next)).With("Accept", m.accept)
		if m.gzip {
			r = r.With("Accept-Encoding", "gzip")
		}
		answer, err := ask(t.Context(), w.proxy, r)
		if err != nil {
			return nil, nil, false, err
		}
		if answer.Header.Get("Content-Type") == "application/json" {
			if can := m.accept == partials && m.view.of.cached() || m.view.of.inProtobuf(); can && !m.view.opaque() && w.sources.OfT(t, answer.Header) == cache {
				err = errors.New("the cache answered in JSON")
			}
			return nil, nil, false, err
		}
		body, err := unzipped(answer)
		if err != nil {
			return nil, nil, false, err
		}
		list, err := message(body)
		if err != nil {
			return nil, nil, false, err
		}
		page, err := meta.ExtractList(list)
		if err != nil {
			return nil, nil, false, err
		}
		items, raw = append(items, page...), append(raw, body...)
		of, err := meta.ListAccessor(list)
		if err != nil || of.GetContinue() == "" {
			return items, raw, true, err
		}
		next = "&continue=" + url.QueryEscape(of.GetContinue())
	}
}

// differs returns the first difference between a cut list and the items of the list in protobuf.
func (m *messages) differs(cut tree, got []runtime.Object) error {
	of := m.view.of.gvk()
	if m.accept == partials {
		of = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	}
	items, _ := at(cut, "items").(list)
	if len(items) != len(got) {
		return fmt.Errorf("%d items instead of %d", len(got), len(items))
	}
	for i, item := range items {
		want, err := typed(of, item)
		if err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(want, untyped(got[i])) {
			is, err := json.Marshal(got[i])
			return fmt.Errorf("item %d\nis   %s\nwant %s, %w", i, is, encode(nil, item), err)
		}
	}
	return nil
}

// messages reports whether the events of a watch are in protobuf.
func (of *watcher) messages() bool {
	return strings.HasPrefix(of.resp.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf")
}

// same reports whether the watch shows two versions of an object alike. In protobuf, an empty map is
// no map.
func (of *watcher) same(t *testing.T, before, is tree) bool {
	t.Helper()
	if !of.messages() {
		return differs(before, is, "") == ""
	}
	was, err := typed(of.view.of.gvk(), before)
	if err != nil {
		t.Fatal(err)
	}
	now, err := typed(of.view.of.gvk(), is)
	if err != nil {
		t.Fatal(err)
	}
	return equality.Semantic.DeepEqual(was, now)
}

// checkMessage compares an event in protobuf with the one that the watch should have.
func (of *watcher) checkMessage(got conformance.Event, want tree) error {
	if kind := textAt(want, "type"); got.Type != kind {
		return fmt.Errorf("a %s event instead of %s", got.Type, encode(nil, want))
	}
	if got.Type == "BOOKMARK" {
		return nil // only the end of the state
	}
	const frame = 4
	var event metav1.WatchEvent
	if err := event.Unmarshal(got.Line[frame:]); err != nil {
		return err
	}
	is, err := message(event.Object.Raw)
	if err != nil {
		return err
	}
	due, err := typed(of.view.of.gvk(), at(want, "object"))
	if err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(due, untyped(is)) {
		text, err := json.Marshal(is)
		return fmt.Errorf("\nwant %s\ngot  %s, %w", encode(nil, want), text, err)
	}
	return leaksMessage(got.Line, want)
}
