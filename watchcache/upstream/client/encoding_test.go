package client

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

var protoConfigMaps = &object.Resource{
	GVR: configmaps, Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true, Encoding: object.Protobuf,
}

var jsonConfigMaps = &object.Resource{GVR: configmaps, Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true}

func message(t testing.TB, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func enveloped(t testing.TB, kind string, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	return append(bytes.Clone(ProtobufPrefix), message(t, &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: message(t, m)})...)
}

func protoFrame(t testing.TB, kind string, object []byte) []byte {
	t.Helper()
	event := message(t, &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}})
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}

func configMap(name, rv string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "u", ResourceVersion: rv}, Data: map[string]string{"k": "v"}}
}

// The stream returns whole events, regardless of how their bytes arrive, and tells whether the next one has
// arrived. If it breaks within an event, the error is not io.EOF.
func TestProtoStream(t *testing.T) {
	one, gone := configMap("a", "7"), &metav1.Status{Code: 410, Reason: "Expired", Message: "too old"}
	body := append(protoFrame(t, "ADDED", enveloped(t, "ConfigMap", one)), protoFrame(t, "ERROR", enveloped(t, "Status", gone))...)
	s := NewStream(iotest.OneByteReader(bytes.NewReader(body)), protoConfigMaps)
	e, err := s.Next()
	if err != nil || e.Kind != "ADDED" || !bytes.Equal(e.Object, message(t, one)) {
		t.Fatalf("%s %q, %v", e.Kind, e.Object, err)
	}
	if e, err = s.Next(); err != nil || e.Kind != "ERROR" {
		t.Fatalf("%s, %v", e.Kind, err)
	}
	if err := EventError(e, object.Protobuf); err == nil || err.Error() != "too old" {
		t.Errorf("error event: %v", err)
	}
	if _, err := s.Next(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("at the end: %v", err)
	}
	for cut := 1; cut <= len(body); cut++ {
		s := NewStream(bytes.NewReader(body[:cut]), protoConfigMaps)
		err = nil
		for n := 0; err == nil; n++ {
			buffered := s.Buffered()
			if _, err = s.Next(); n > 0 && buffered != (err == nil) {
				t.Fatalf("cut at %d: buffered is %t, and then %v", cut, buffered, err)
			}
		}
		whole := cut == len(body) || cut == len(protoFrame(t, "ADDED", enveloped(t, "ConfigMap", one)))
		if !whole && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

func TestMalformedProtoStreams(t *testing.T) {
	good := enveloped(t, "ConfigMap", configMap("a", "7"))
	compressed := append(bytes.Clone(ProtobufPrefix), message(t, &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ContentEncoding: "gzip"})...)
	for name, body := range map[string][]byte{
		"JSON":           []byte(`{"type":"ADDED","object":{}}`),
		"a huge frame":   {0xff, 0xff, 0xff, 0xff},
		"no WatchEvent":  {0, 0, 0, 1, 0xff},
		"no envelope":    protoFrame(t, "ADDED", message(t, configMap("a", "7"))),
		"another kind":   protoFrame(t, "ADDED", enveloped(t, "Secret", configMap("a", "7"))),
		"no Status":      protoFrame(t, "ERROR", good),
		"it is encoded":  protoFrame(t, "ADDED", compressed),
		"an empty frame": {0, 0, 0, 0},
	} {
		if e, err := NewStream(bytes.NewReader(body), protoConfigMaps).Next(); !errors.Is(err, object.ErrMalformed) {
			t.Errorf("%s: %s, %v", name, e.Kind, err)
		}
	}
}

// A field selects the same objects in both encodings.
func TestWireFields(t *testing.T) {
	seed := int64(cachetest.Seed(t))
	selected := 0
	for gvk, kind := range scheme.Scheme.AllKnownTypes() {
		gvr, _ := meta.UnsafeGuessKindToResource(gvk)
		if len(BuiltinFields(gvr)) == 0 {
			continue
		}
		fill := randfill.NewWithSeed(seed).NilChance(0.2).NumElements(0, 2).MaxDepth(12).Funcs(func(*metav1.FieldsV1, randfill.Continue) {})
		written := &object.Resource{GVR: gvr, Kind: kind.Name(), Fields: BuiltinFields(gvr)}
		onWire := &object.Resource{GVR: gvr, Kind: kind.Name(), Encoding: object.Protobuf}
		onWire.Fields = OnTheWire(onWire, BuiltinFields(gvr))
		if len(onWire.Fields) != len(written.Fields) {
			t.Errorf("%s: %d of %d fields are found in %s", gvr, len(onWire.Fields), len(written.Fields), kind)
		}
		for range 50 {
			value := reflect.New(kind)
			fill.Fill(value.Interface())
			value.Elem().FieldByName("ObjectMeta").Set(reflect.ValueOf(metav1.ObjectMeta{Name: "one", ResourceVersion: "7"}))
			value.Elem().FieldByName("TypeMeta").SetZero()
			text, err := json.Marshal(value.Interface())
			if err != nil {
				t.Fatal(err)
			}
			a, err := written.ParseObject(text)
			if err != nil {
				t.Fatal(err)
			}
			b, err := onWire.ParseObject(message(t, value.Interface().(interface{ Marshal() ([]byte, error) })))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range written.Fields {
				values := []string{"", "true", "false", "0"}
				for _, path := range f.Paths {
					values = append(values, gjson.GetBytes(text, path).String())
				}
				for _, value := range values {
					selector := fields.OneTermEqualSelector(f.Name, value)
					inJSON, err1 := object.NewFilter(written, "", nil, selector)
					inProto, err2 := object.NewFilter(onWire, "", nil, selector)
					if err := errors.Join(err1, err2); err != nil {
						t.Fatal(err)
					}
					if inJSON.Matches(a) != inProto.Matches(b) {
						t.Errorf("%s: %s: %t in JSON, %t in protobuf", gvr, selector, inJSON.Matches(a), inProto.Matches(b))
					}
					if inJSON.Matches(a) && value != "" {
						selected++
					}
				}
			}
		}
	}
	if selected < 1000 {
		t.Errorf("only %d values were found", selected)
	}
	if path, ok := object.NewWirePath(reflect.TypeFor[corev1.Pod](), "spec.hostNetwork"); !ok || !path.Bool {
		t.Error("spec.hostNetwork is no boolean")
	}
}

// Errors are decoded in both encodings, including their causes. The causes distinguish a lagging
// upstream from a restored upstream.
func TestStatusErrors(t *testing.T) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: "Too large", Reason: metav1.StatusReasonTimeout, Code: 504,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}},
	}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"JSON": text, "protobuf": enveloped(t, "Status", &status)} {
		err := statusError(&http.Response{StatusCode: 504, Status: "504", Body: io.NopCloser(bytes.NewReader(body))})
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	html := statusError(&http.Response{StatusCode: 502, Status: "502 Bad Gateway", Body: io.NopCloser(strings.NewReader("<html>"))})
	if apierrors.HasStatusCause(html, metav1.CauseTypeResourceVersionTooLarge) || !strings.Contains(html.Error(), "<html>") {
		t.Errorf("a page of a load balancer: %v", html)
	}
}

// Only a response from upstream itself proves that a resource has no protobuf form.
func TestOtherContentTypes(t *testing.T) {
	for kind, none := range map[string]bool{"application/json": true, "text/html": false, "": false} {
		c := of(roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Status: "200 OK", Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
		}))
		if _, err := c.Probe(t.Context(), "probe", protoConfigMaps); errors.Is(err, object.ErrNoEncoding) != none || err == nil {
			t.Errorf("a probe that is answered with %q: %v", kind, err)
		}
		if _, err := c.Page(t.Context(), protoConfigMaps, nil, nil); errors.Is(err, object.ErrNoEncoding) || err == nil {
			t.Errorf("a list that is answered with %q: %v", kind, err)
		}
	}
}

// No input from upstream causes a panic or uses much more memory than its own size.
func FuzzStreams(f *testing.F) {
	good := enveloped(f, "ConfigMap", configMap("a", "7"))
	f.Add(protoFrame(f, "ADDED", good))
	f.Add(protoFrame(f, "ERROR", enveloped(f, "Status", &metav1.Status{Code: 410})))
	f.Add([]byte(`{"type":"ADDED","object":{"kind":"ConfigMap"}}` + "\n"))
	f.Add([]byte{0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, r := range []*object.Resource{protoConfigMaps, jsonConfigMaps} {
			s := NewStream(bytes.NewReader(body), r)
			for events := 0; ; events++ {
				e, err := s.Next()
				if err != nil {
					break
				}
				if events > len(body) {
					t.Fatalf("%d events of %d bytes", events, len(body))
				}
				_, _ = r.ParseObject(e.Object)
				_ = EventError(e, r.Encoding)
				_ = s.Buffered()
			}
		}
	})
}

// A list in protobuf is read as the API's own types read it.
func FuzzProtoPage(f *testing.F) {
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.ConfigMap{*configMap("a", "7"), *configMap("b", "8")}}
	f.Add(enveloped(f, "ConfigMapList", list))
	f.Add(enveloped(f, "ConfigMapList", &metav1.ListMeta{}))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _, _ = readProtoProbe(body)
		_, _, _ = readJSONProbe(body)
		p, keys, err := pageOf(protoConfigMaps, body)
		if err != nil {
			return // the reader accepts fewer wire types
		}
		var envelope runtime.Unknown
		if err := readEnvelope(body, &envelope); err != nil {
			t.Fatal(err)
		}
		var whole metav1.PartialObjectMetadataList
		if whole.Unmarshal(envelope.Raw) != nil {
			return // fields that the reader does not need may be malformed
		}
		var want []string
		for _, o := range whole.Items {
			want = append(want, protoConfigMaps.Key(o.Namespace, o.Name))
		}
		if whole.Continue != p.Next || !slices.Equal(keys, want) {
			t.Errorf("%+v %q, by the API's types %+v %q", p, keys, whole.ListMeta, want)
		}
	})
}

// JSON of an encoder other than Go's is read alike, or refused.
func TestAnyJSON(t *testing.T) {
	for stream, kind := range map[string]string{
		"{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n":                         "ADDED",
		" { \"object\" : {\"a\":1} , \"t\\u0079pe\" : \"\\u0041DDED\" } \r\n": "ADDED",
		"{\n\"type\": \"ADDED\",\n\"object\": {\"a\":1}}\n":                   "", // not one line
	} {
		e, err := NewJSONStream(strings.NewReader(stream)).Next()
		if e.Kind != kind || (err == nil) != (kind != "") || kind != "" && string(e.Object) != `{"a":1}` {
			t.Errorf("%q: %q, %q, %v", stream, e.Kind, e.Object, err)
		}
	}
	p, version, err := readJSONProbe([]byte("{ \"k\\u0069nd\" : \"ConfigMapList\", \"metadata\": {\"resourceVersion\" : \"7\"}, \"apiVersion\": \"v1\"}"))
	if err != nil || p.SelfDescribing || p.RV != 7 || p.ListKind != "ConfigMapList" || version != "v1" {
		t.Errorf("%+v, %q, %v", p, version, err)
	}
}

// A probe shows whether a list is in the form of kube-apiserver, also if it has found the only object of a
// scope.
func TestForeignLists(t *testing.T) {
	for list, foreign := range map[string]bool{
		`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`:                             false,
		`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}`:    false,
		`{"apiVersion":"e.io/v1","items":[{"kind":"A"}],"kind":"AList","metadata":{"continue":"","resourceVersion":"7"}}`: false,
		`{"apiVersion":"e.io/v1","items":[{"kind":"A"}],"kind":"AList","metadata":{"resourceVersion":"7"}}`:               true,
		`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":null}`:                           true,
		`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[ ]}`:                            true,
		`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"}}`:                                        true,
		`{"items":[],"apiVersion":"e.io/v1","kind":"AList","metadata":{"continue":"","resourceVersion":"7"}}`:             true,
		`{"kind":"NodeList","apiVersion":"v1","metadata":{"selfLink":"","resourceVersion":"7"},"items":[]}`:               true,
	} {
		if p, _, err := readJSONProbe([]byte(list)); err != nil || p.Foreign != foreign {
			t.Errorf("%s: %t, %v", list, p.Foreign, err)
		}
	}
}
