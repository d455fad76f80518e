package object

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// protoPods is the resource of a protobuf feed of pods.
var protoPods = func() *Resource {
	r := *pods
	r.Encoding, r.Fields = Protobuf, nil
	for i, name := range []string{"spec.nodeName", "spec.hostNetwork", "spec.terminationGracePeriodSeconds", "status.phase"} {
		path, ok := NewWirePath(reflect.TypeFor[corev1.Pod](), name)
		if !ok {
			panic("BUG: " + name)
		}
		f := Field{Name: name, Wire: []WirePath{path}, Kept: i == 0}
		if path.Bool {
			f.Default = "false"
		}
		r.Fields = append(r.Fields, f)
	}
	return &r
}()

func protoPod() *corev1.Pod {
	seconds := int64(30)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "a", UID: "u", ResourceVersion: "99", Labels: map[string]string{"tier": "front", "app": "web"},
			Annotations: map[string]string{"name": "no"}, Finalizers: []string{"x"},
		},
		Spec:   corev1.PodSpec{NodeName: "n1", HostNetwork: true, TerminationGracePeriodSeconds: &seconds},
		Status: corev1.PodStatus{Phase: "Running"},
	}
}

func marshal(t testing.TB, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseProtoObject(t *testing.T) {
	pod := protoPod()
	src := marshal(t, pod)
	o, err := protoPods.ParseObject(src)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(protoPods, o), (parsed{"a", "web", "u", 99, "app=web,tier=front", "n1"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for i, want := range []string{"n1", "true", "30", "Running"} {
		if got := o.Value(protoPods, i); got != want {
			t.Errorf("%s is %q, want %q", protoPods.Fields[i].Name, got, want)
		}
	}
	if !bytes.Equal(o.Bytes(), src) {
		t.Error("other bytes were kept than came")
	}
	pods := corev1.PodList{Items: []corev1.Pod{*pod}}
	if got, want := o.Item(), bytes.TrimPrefix(marshal(t, &pods), marshal(t, &corev1.PodList{})); !bytes.Equal(got, want) {
		t.Errorf("as an item of a list it is %q, want %q", got, want)
	}
}

// At writes an object as the API's own type would write it at that resourceVersion.
func TestProtoObjectAt(t *testing.T) {
	for _, long := range []int{0, 50, 120, 200} { // lengths are encoded in one byte or in two
		pod := protoPod()
		pod.Annotations["long"] = strings.Repeat("x", long)
		o, err := protoPods.ParseObject(marshal(t, pod))
		if err != nil {
			t.Fatal(err)
		}
		for _, rv := range []uint64{1, 99, 100, 12345678901234567890} {
			pod.ResourceVersion = fmt.Sprint(rv)
			at := o.At(rv)
			if !bytes.Equal(at.Bytes(), marshal(t, pod)) || at.ResourceVersion() != rv {
				t.Errorf("at %d: %q, want %q", rv, at.Bytes(), marshal(t, pod))
			}
			if back := at.At(99); !bytes.Equal(back.Item(), o.Item()) {
				t.Errorf("at %d and back: %q", rv, back.Item())
			}
		}
	}
}

// withUnknownFields adds a field that is unknown to all compiled types to a message and to its
// metadata.
func withUnknownFields(message []byte) []byte {
	novelty := protowire.AppendString(protowire.AppendTag(nil, 1999, protowire.BytesType), "novelty")
	novelty = protowire.AppendVarint(protowire.AppendTag(novelty, 2000, protowire.VarintType), 7)
	novelty = protowire.AppendFixed64(protowire.AppendTag(novelty, 2001, protowire.Fixed64Type), 8)
	meta, err := metadataOf(message)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return slices.Concat(appendMetadata(nil, slices.Concat(meta.bytes, novelty)), message[meta.end:], novelty)
}

// Unknown fields survive, even if the resourceVersion is replaced.
func TestUnknownProtoFieldsSurvive(t *testing.T) {
	pod := protoPod()
	src := withUnknownFields(marshal(t, pod))
	o, err := protoPods.ParseObject(src)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(o.Bytes(), src) {
		t.Errorf("%q is kept as %q", src, o.Bytes())
	}
	pod.ResourceVersion = "100000"
	if got, want := o.At(100000).Bytes(), withUnknownFields(marshal(t, pod)); !bytes.Equal(got, want) {
		t.Errorf("at another resourceVersion\n%q, want\n%q", got, want)
	}
}

func TestMalformedProtoObjects(t *testing.T) {
	good := marshal(t, protoPod())
	unnamed, opaque, elsewhere := protoPod(), protoPod(), protoPod()
	unnamed.Name, opaque.ResourceVersion, elsewhere.Namespace = "", "abc", ""
	for name, tc := range map[string]struct {
		src  []byte
		want error
	}{
		"nothing":             {nil, ErrMalformed},
		"cut":                 {good[:len(good)-1], ErrMalformed},
		"not protobuf":        {[]byte("{}"), ErrMalformed},
		"metadata twice":      {append(bytes.Clone(good), good...), ErrMalformed},
		"no name":             {marshal(t, unnamed), ErrMalformed},
		"no namespace":        {marshal(t, elsewhere), ErrMalformed},
		"a resourceVersion":   {marshal(t, opaque), ErrOpaqueResourceVersion},
		"no resourceVersion":  {appendMetadata(nil, nil), ErrOpaqueResourceVersion},
		"metadata of a group": {protowire.AppendTag(nil, metadataNumber, protowire.StartGroupType), ErrMalformed},
	} {
		if _, err := protoPods.ParseObject(tc.src); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func TestProtoBookmark(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}
	annotated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{initialEventsEndKey: "true"}}}
	for name, from := range map[string]*corev1.Pod{"plain": pod, "annotated": annotated} {
		b, rv, err := protoPods.ParseBookmark(marshal(t, from))
		if err != nil || rv != 7 {
			t.Fatalf("%s: at %d, %v", name, rv, err)
		}
		for _, rv := range []uint64{7, 123456789} {
			pod.ResourceVersion, annotated.ResourceVersion = fmt.Sprint(rv), fmt.Sprint(rv)
			if got := b.Append(nil, rv, false); !bytes.Equal(got, marshal(t, pod)) {
				t.Errorf("learnt from the %s one, at %d: %q, want %q", name, rv, got, marshal(t, pod))
			}
			if got := b.Append(nil, rv, true); !bytes.Equal(got, marshal(t, annotated)) || !protoPods.IsInitialEventsEnd(got) {
				t.Errorf("learnt from the %s one, the end at %d: %q, want %q", name, rv, got, marshal(t, annotated))
			}
		}
		pod.ResourceVersion, annotated.ResourceVersion = "7", "7"
	}
}

// No input from upstream causes a panic. An accepted object can be written at any resourceVersion
// and parsed again.
func FuzzParseProtoObject(f *testing.F) {
	good := marshal(f, protoPod())
	f.Add(good)
	f.Add(withUnknownFields(good))
	f.Add(good[:20])
	f.Add(append(bytes.Clone(good), 0x0b, 0x0c))
	f.Fuzz(func(t *testing.T, src []byte) {
		if b, rv, err := protoPods.ParseBookmark(src); err == nil {
			if again, _, err := protoPods.ParseBookmark(b.Append(nil, rv, true)); err != nil || !bytes.Equal(again.Append(nil, rv, false), b.Append(nil, rv, false)) {
				t.Errorf("bookmark %q is not read back: %v", src, err)
			}
		}
		o, err := protoPods.ParseObject(src)
		if err != nil {
			return
		}
		if !bytes.Equal(o.Bytes(), src) {
			t.Errorf("%q is kept as %q", src, o.Bytes())
		}
		at, err := protoPods.ParseObject(o.At(o.rv + 1).Bytes())
		if err != nil || at.rv != o.rv+1 || at.key != o.key || at.uid != o.uid || !slices.Equal(at.labels, o.labels) {
			t.Errorf("%q at %d is not read back: %v", src, o.rv+1, err)
		}
	})
}
