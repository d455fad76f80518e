package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var (
	podKind      = Kind{Kind: "Pod", ListKind: "PodList", APIVersion: "v1"}
	protoPodKind = Kind{Kind: "Pod", ListKind: "PodList", APIVersion: "v1", Protobuf: true}
	gadgetKind   = Kind{Kind: "G", ListKind: "GList", APIVersion: "e.c/v1", Sorted: true}
	podForm      = NewForm(Choice{}, podKind)
	gadgetForm   = NewForm(Choice{}, gadgetKind)
)

func noErr(t *testing.T) func([]byte, error) []byte {
	return func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func TestListForms(t *testing.T) {
	rest := int64(5)
	page := ListMeta{ResourceVersion: 7, Continue: "tok", Remaining: &rest}
	for name, tc := range map[string]struct {
		form Form
		meta ListMeta
		want string
	}{
		"built-in":              {podForm, ListMeta{ResourceVersion: 7}, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}` + "\n"},
		"built-in, page":        {podForm, page, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"tok","remainingItemCount":5},"items":[]}` + "\n"},
		"custom resource":       {gadgetForm, ListMeta{ResourceVersion: 7}, `{"apiVersion":"e.c/v1","items":[],"kind":"GList","metadata":{"continue":"","resourceVersion":"7"}}` + "\n"},
		"custom resource, page": {gadgetForm, page, `{"apiVersion":"e.c/v1","items":[],"kind":"GList","metadata":{"continue":"tok","remainingItemCount":5,"resourceVersion":"7"}}` + "\n"},
		"metadata of nothing": {
			NewForm(Choice{Partial: true}, podKind),
			ListMeta{ResourceVersion: 7},
			`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":null}` + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(tc.form.AppendListTail(tc.form.AppendListHead(nil, tc.meta, 0), tc.meta, 0))
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func samplePod() *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "a", UID: "u", ResourceVersion: "9", Generation: 2, CreationTimestamp: metav1.Unix(1700000000, 0),
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "<b>"}, Finalizers: []string{"x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "1", Controller: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "m", Operation: "Update", APIVersion: "v1", Time: &metav1.Time{Time: time.Unix(1700000001, 0)},
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
			}},
		},
		Spec: corev1.PodSpec{NodeName: "n1"},
	}
}

// inEnvelope writes a message with the API's own types.
func inEnvelope(t *testing.T, apiVersion, kind string, message interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: noErr(t)(message.Marshal())}
	return append([]byte("k8s\x00"), noErr(t)(unknown.Marshal())...)
}

func framed(t *testing.T, kind string, object []byte) []byte {
	t.Helper()
	event := noErr(t)((&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}).Marshal())
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}

// The bytes equal the bytes of the API's own types.
func TestProtobuf(t *testing.T) {
	rest := int64(300)
	for _, size := range []int{0, 1, 100} { // lengths of one byte and more
		pod := samplePod()
		pod.Spec.NodeName = string(bytes.Repeat([]byte("n"), size*10))
		message := noErr(t)(pod.Marshal())
		meta := metav1.ListMeta{ResourceVersion: "12345", Continue: "token", RemainingItemCount: &rest}
		ours := ListMeta{ResourceVersion: 12345, Continue: "token", Remaining: &rest}
		partial := metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta}
		pods, partials := corev1.PodList{ListMeta: meta}, metav1.PartialObjectMetadataList{ListMeta: meta}
		for range size {
			pods.Items, partials.Items = append(pods.Items, *pod), append(partials.Items, partial)
		}
		written, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		const metaVersion = "meta.k8s.io/v1"
		for name, tc := range map[string]struct {
			form      Form
			kept      []byte
			list, one []byte
		}{
			"plain": {
				NewForm(inProto, protoPodKind), message,
				inEnvelope(t, "v1", "PodList", &pods), inEnvelope(t, "v1", "Pod", pod),
			},
			"metadata": {
				NewForm(metaProto, protoPodKind), message,
				inEnvelope(t, metaVersion, "PartialObjectMetadataList", &partials), inEnvelope(t, metaVersion, "PartialObjectMetadata", &partial),
			},
			"metadata, from JSON": {
				NewForm(metaProto, gadgetKind), written,
				inEnvelope(t, metaVersion, "PartialObjectMetadataList", &partials), inEnvelope(t, metaVersion, "PartialObjectMetadata", &partial),
			},
		} {
			var items []byte
			for range size {
				items = noErr(t)(tc.form.AppendItem(items, bare(tc.kept)))
			}
			n := int64(len(items))
			list := tc.form.AppendListTail(append(tc.form.AppendListHead(nil, ours, n), items...), ours, n)
			if !bytes.Equal(list, tc.list) {
				t.Errorf("%s, %d items: list\n%q instead of\n%q", name, size, list, tc.list)
			}
			if got := noErr(t)(tc.form.AppendObject(nil, bare(tc.kept))); !bytes.Equal(got, tc.one) {
				t.Errorf("%s: object\n%q instead of\n%q", name, got, tc.one)
			}
			if got, want := noErr(t)(tc.form.AppendEvent(nil, "MODIFIED", bare(tc.kept))), framed(t, "MODIFIED", tc.one); !bytes.Equal(got, want) {
				t.Errorf("%s: event\n%q instead of\n%q", name, got, want)
			}
			status := metav1.Status{Status: "Failure", Code: 410}
			if got, want := tc.form.AppendError(nil, &status), framed(t, "ERROR", inEnvelope(t, "v1", "Status", &status)); !bytes.Equal(got, want) {
				t.Errorf("%s: error\n%q instead of\n%q", name, got, want)
			}
		}
	}
}

// The metadata of a custom resource, whose keys are sorted, is written in the order of the Go type.
func TestMetadataOfCustomResources(t *testing.T) {
	const object = `{"apiVersion":"e.c/v1","kind":"G","metadata":{"annotations":{"a":"\u003cb\u003e"},"creationTimestamp":"2026-01-02T03:04:05Z","generation":1,` +
		`"managedFields":[{"apiVersion":"e.c/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}},"manager":"m","operation":"Update","time":"2026-01-02T03:04:05Z"}],` +
		`"name":"w","namespace":"a","resourceVersion":"9","uid":"u"},"spec":{}}`
	const want = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"w","namespace":"a","uid":"u","resourceVersion":"9","generation":1,` +
		`"creationTimestamp":"2026-01-02T03:04:05Z","annotations":{"a":"\u003cb\u003e"},` +
		`"managedFields":[{"manager":"m","operation":"Update","apiVersion":"e.c/v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]}}` + "\n"
	if got := noErr(t)(NewForm(metaJSON, gadgetKind).AppendObject(nil, bare(object))); string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// If metadata has unknown fields, upstream must answer, so that no field is lost.
func TestUnknownMetadataIsNotForgotten(t *testing.T) {
	const object = `{"apiVersion":"e.c/v1","kind":"G","metadata":{"name":"w","novelty":{"x":1},"resourceVersion":"9"}}`
	for name, c := range map[string]Choice{"JSON": metaJSON, "protobuf": metaProto} {
		if _, err := NewForm(c, gadgetKind).AppendItem(nil, bare(object)); !errors.Is(err, ErrUnknownMetadata) {
			t.Errorf("%s: %v", name, err)
		}
	}
	const pod = `{"metadata":{"name":"w","novelty":{"x":1},"resourceVersion":"9"},"spec":{}}`
	got := noErr(t)(NewForm(metaJSON, podKind).AppendItem(nil, bare(pod)))
	if !bytes.Contains(got, []byte(`"novelty":{"x":1}`)) {
		t.Errorf("of a built-in object's metadata is left %s", got)
	}
}

// No object makes the functions panic. They return exactly the object's metadata.
func FuzzPartial(f *testing.F) {
	pod := samplePod()
	message, err := pod.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(message)
	f.Add([]byte(`{"metadata":{"name":"w"}}`))
	f.Add([]byte{})
	forms := []Form{
		NewForm(metaJSON, podKind), NewForm(metaJSON, gadgetKind), NewForm(metaProto, gadgetKind), NewForm(metaProto, protoPodKind),
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		for _, form := range forms {
			item, err := form.AppendItem(nil, bare(object))
			if err != nil {
				continue
			}
			if one, err := form.AppendObject(nil, bare(object)); err != nil || len(item) == 0 {
				t.Errorf("%q: an item, but no object: %v", one, err)
			}
		}
	})
}

// bare is an object with bytes only.
type bare []byte

func (bare) Key() string             { return "" }
func (bare) UID() string             { return "" }
func (bare) ResourceVersion() uint64 { return 0 }
func (bare) Written() uint64         { return 0 }
func (b bare) Bytes() []byte         { return b }
