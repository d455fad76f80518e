package projection

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"
)

// message is a Go type of the API.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

func newOf(t reflect.Type) message { return reflect.New(t).Interface().(message) }

// fill returns random objects.
func fill(seed int64) *randfill.Filler {
	const nils, most, depth = .2, 3, 16
	return randfill.NewWithSeed(seed).NilChance(nils).NumElements(0, most).MaxDepth(depth).Funcs(
		func(*metav1.TypeMeta, randfill.Continue) {},
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(m)
			m.CreationTimestamp, m.DeletionTimestamp = metav1.Unix(1e9, 0), nil
		},
		func(at *metav1.Time, _ randfill.Continue) { *at = metav1.Unix(1e9+7, 0) },
		func(at *metav1.MicroTime, _ randfill.Continue) {
			*at = metav1.NewMicroTime(metav1.Unix(1e9, 7000).Time)
		},
		func(raw *runtime.RawExtension, _ randfill.Continue) { raw.Raw = []byte(`{"a":{"b":[1,"c"]}}`) },
		func(raw *metav1.FieldsV1, _ randfill.Continue) { raw.SetRawString(`{"f:spec":{"f:b":{}}}`) },
	)
}

// pathsIn returns the paths in a decoded value.
func pathsIn(v any, at Path) (all []Path) {
	if len(at) > 0 {
		all = append(all, at)
	}
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			all = append(all, pathsIn(value, append(slices.Clip(at), Step{Key: key}))...)
		}
	case []any:
		for _, item := range v {
			all = append(all, pathsIn(item, append(slices.Clip(at), Step{Items: true}))...)
		}
	}
	slices.SortFunc(all, func(a, b Path) int { return slices.CompareFunc(a, b, compare) })
	return all
}

func compare(a, b Step) int {
	switch {
	case a == b:
		return 0
	case a.Items || !b.Items && a.Key < b.Key:
		return -1
	}
	return 1
}

// Cut messages of all types have the fields of the cut JSON.
func TestMessages(t *testing.T) {
	const rounds, most = 20, 5
	cut, left, kept := 0, 0, 0
	for resource, of := range types() {
		for seed := range int64(rounds) {
			r := rand.New(rand.NewPCG(uint64(seed), 2))
			object := newOf(of)
			fill(seed).Fill(object)
			text, err := json.Marshal(object)
			if err != nil {
				t.Fatalf("%v: %v", resource, err)
			}
			encoded, err := object.Marshal()
			if err != nil {
				t.Fatalf("%v: %v", resource, err)
			}
			var decoded any
			if err := json.Unmarshal(text, &decoded); err != nil {
				t.Fatal(err)
			}
			all := pathsIn(decoded, nil)
			var some []Path
			for range 1 + r.IntN(most) {
				p := all[r.IntN(len(all))]
				some = append(some, append(slices.Clip(p), path([]string{"a", "*"}[r.IntN(2)])[:r.IntN(8)/7]...))
			}
			p := Drop(some)
			if seed%2 == 0 {
				p = Keep(some)
			}
			m := p.Message(resource)
			if m == nil {
				left++
				continue
			}
			cut++
			short, err := p.Append(nil, text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Append([]byte("<"), encoded)
			if err != nil || got[0] != '<' {
				t.Fatalf("%v: %v: %q", resource, err, got)
			}
			kept += len(got) - 1
			want, is := newOf(of), newOf(of)
			if err := json.Unmarshal(short, want); err != nil {
				t.Fatal(err)
			}
			if err := is.Unmarshal(got[1:]); err != nil {
				t.Fatalf("%v: %v: %q", resource, err, got)
			}
			if !equality.Semantic.DeepEqual(is, want) {
				now, _ := json.Marshal(is)
				t.Fatalf("%v, seed %d, keep %t: paths %v of\n%s\n got %s\nwant %s", resource, seed, seed%2 == 0, some, text, now, short)
			}
		}
	}
	t.Logf("%d objects of %d types to %d bytes, %d with paths that only JSON has", cut, len(types()), kept, left)
	if cut < left {
		t.Error("these are too few: the test does not test")
	}
}

func messageOf(p *Projection) *Message {
	return p.Message(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
}

// Only types whose messages are understood are cut.
func TestNoMessage(t *testing.T) {
	for _, c := range []struct {
		group, version, resource, path string
		ok                             bool
	}{
		{"", "v1", "pods", "spec/nodeName", true},
		{"", "v1", "endpoints", "subsets/*/ports", true},
		{"networking.k8s.io", "v1", "networkpolicies", "spec", true},
		{"", "v1", "pods", "spec/volumes/*/emptyDir", true},
		{"", "v1", "pods", "kind", true},
		{"", "v1", "pods", "metadata/none", false},
		{"", "v1", "pods", "spec/volumes/*/none", false},
		{"apps", "v1", "statefulsets", "spec/volumeClaimTemplates/*/spec", true},
		{"apps", "v1", "statefulsets", "spec/volumeClaimTemplates/*/kind", false},
		{"", "v1", "pods", "metadata/managedFields/*/fieldsV1", true},
		{"", "v1", "pods", "metadata/managedFields/*/fieldsV1/f:spec", false},
		{"", "v1", "pods", "spec/containers/*/resources/requests/cpu/x", false},
		{"authentication.k8s.io", "v1", "tokenreviews", "status/user/extra/a", true},
		{"authentication.k8s.io", "v1", "tokenreviews", "status/user/extra/a/*", false},
		{"storage.k8s.io", "v1alpha1", "volumeattachments", "spec", false},
		{"example.com", "v1", "pods", "spec", false},
		{"", "v1", "podlists", "items", false},
	} {
		of := schema.GroupVersionResource{Group: c.group, Version: c.version, Resource: c.resource}
		if got := Keep(paths(c.path)).Message(of); got != nil != c.ok {
			t.Errorf("%v with %s: %v", of, c.path, got)
		}
		if got := Drop(paths(c.path)).Message(of); got != nil != c.ok {
			t.Errorf("%v without %s: %v", of, c.path, got)
		}
		if metadata := Keep(paths(c.path)).Metadata() != nil; metadata == (strings.HasPrefix(c.path, "metadata") && !c.ok) {
			t.Errorf("metadata with %s: %t", c.path, metadata)
		}
	}
}

func nested(number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), message)
}

// Keys are compared as they are. JSON may escape them.
func TestKeys(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"<": "a", `\u003c`: "b", "": "c"}}}
	encoded, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"<": "a", `\u003c`: "b", "": "c"} {
		got, err := messageOf(Keep([]Path{{{Key: "metadata"}, {Key: "annotations"}, {Key: key}}})).Append(nil, encoded)
		var cut corev1.Pod
		if err := errors.Join(err, cut.Unmarshal(got)); err != nil || !maps.Equal(cut.Annotations, map[string]string{key: want}) {
			t.Errorf("%q: %v, %v", key, cut.Annotations, err)
		}
	}
}

// Paths below a list of bytes, which is a string in JSON, keep nothing. JSON may have keys as they are.
func TestBelowBytes(t *testing.T) {
	object := corev1.ConfigMap{BinaryData: map[string][]byte{"<": {1}}}
	encoded, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	key := Path{{Key: "binaryData"}, {Key: "<"}}
	for _, items := range []bool{false, true} {
		p := key
		if items {
			p = append(slices.Clip(key), Step{Items: true})
		}
		cut := Keep([]Path{p, {{Key: "metadata"}}})
		got, err := cut.Message(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Append(nil, encoded)
		var o corev1.ConfigMap
		if err = errors.Join(err, o.Unmarshal(got)); err != nil || (len(o.BinaryData["<"]) == 0) != items {
			t.Errorf("%v: %v, %v", p, o.BinaryData, err)
		}
		text, err := cut.Append(nil, []byte(`{"binaryData":{"<":"AQ=="}}`))
		if err != nil || strings.Contains(string(text), "AQ") == items {
			t.Errorf("%v: %s, %v", p, text, err)
		}
	}
}

// FuzzMessage holds that no bytes make a projection panic, and that a message never becomes longer.
func FuzzMessage(f *testing.F) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{NodeName: "n"}}
	encoded, err := pod.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	cuts := []*Message{messageOf(Keep(paths("metadata/labels/a", "spec/volumes/*/emptyDir/medium"))), messageOf(Drop(paths("metadata/labels/a", "spec/nodeName")))}
	f.Fuzz(func(t *testing.T, message []byte) {
		for _, m := range cuts {
			got, err := m.Append(nil, message)
			if err == nil && len(got) > len(message) {
				t.Errorf("%q became %q", message, got)
			}
			var whole, cut corev1.Pod
			if err == nil && whole.Unmarshal(message) == nil && cut.Unmarshal(got) != nil {
				t.Errorf("%q became %q, which is no pod", message, got)
			}
		}
	})
}
