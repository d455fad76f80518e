package wire

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// noRows has a row for each object.
type noRows struct{}

func (noRows) Columns() []byte { return []byte("[]") }
func (noRows) Empty() string   { return "[]" }
func (noRows) AppendRow(dst []byte, _ Object, _ bool) ([]byte, error) {
	return append(dst, `{"cells":["x"]`...), nil
}
func (noRows) Metadata(made []byte) ([]byte, error) { return slices.Clone(made), nil }
func (noRows) AppendBookmarkRow(dst []byte) []byte  { return append(dst, `{"cells":[]`...) }
func (noRows) AppendBookmarkMetadata(dst []byte, _ uint64, _ bool) []byte {
	return append(dst, `{"metadata":{"annotations":{"a":"1"}}}`...)
}

// Each form in JSON shows some fields of its objects. Bookmarks are whole.
func TestFormsOfFields(t *testing.T) {
	fields := projection.Keep([]projection.Path{{{Key: "metadata"}, {Key: "labels"}}, {{Key: "status"}, {Key: "phase"}}})
	const meta, ends = `"name":"a","resourceVersion":"3"`, `"resourceVersion":"3","annotations":{"k8s.io/initial-events-end":"true"}`
	pod := bare(`{"metadata":{` + meta + `,"labels":{"x":"1"},"annotations":{"b":"2"}},"spec":{},"status":{"phase":"P","n":1}}`)
	gadget := bare(`{"apiVersion":"e.c/v1","kind":"G","metadata":{"annotations":{"b":"2"},"labels":{"x":"1"},` + meta + `},"status":{"n":1,"phase":"P"}}`)
	const partial = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{` + meta + `,"labels":{"x":"1"}}}`
	const slim = `"metadata":{` + meta + `,"labels":{"x":"1"}},"status":{"phase":"P"}}`
	const single = `{"kind":"Pod","apiVersion":"v1",` + slim
	const custom = `{"apiVersion":"e.c/v1","kind":"G","metadata":{"labels":{"x":"1"},` + meta + `},"status":{"phase":"P"}}`
	table := func(objects bool) Form { return NewTable(podKind, objects, noRows{}, fields) }
	for name, c := range map[string]struct {
		form           Form
		object         bare
		item, get      string // get is what an event shows, too
		event, initial string
	}{
		"object":          {NewForm(Choice{Fields: fields}, podKind), pod, "{" + slim, single, single, `{"metadata":{` + ends + `}}`},
		"custom resource": {NewForm(Choice{Fields: fields}, gadgetKind), gadget, custom, custom, custom, `{"metadata":{` + ends + `}}`},
		"metadata": {
			NewForm(Choice{Partial: true, Fields: fields}, podKind), pod, partial, partial, partial,
			`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{` + ends + `}}`,
		},
		"metadata of a custom resource": {NewForm(Choice{Partial: true, Fields: fields}, gadgetKind), gadget, partial, partial, partial, ""},
		"table":                         {table(false), pod, `{"cells":["x"],"object":` + partial + `}`, "", "", `"object":{"metadata":{"annotations":{"a":"1"}}}`},
		"table with objects":            {table(true), pod, `{"cells":["x"],"object":` + single + `}`, "", "", `"object":{"metadata":{` + ends + `}}`},
	} {
		if c.form.Verbatim() {
			t.Errorf("%s: items are the cache's", name)
		}
		if got := string(noErr(t)(c.form.AppendItem([]byte("<"), c.object))); got != "<"+c.item {
			t.Errorf("%s: item %s\nwant %s", name, got, c.item)
		}
		if got := string(noErr(t)(c.form.AppendObject([]byte("<"), c.object))); c.get != "" && got != "<"+c.get+"\n" || !strings.Contains(got, c.item[1:]) && c.get == "" {
			t.Errorf("%s: object %s\nwant %s", name, got, c.get)
		}
		if got := string(noErr(t)(c.form.AppendEvent([]byte("<"), "ADDED", c.object))); c.event != "" && got != `<{"type":"ADDED","object":`+c.event+"}\n" {
			t.Errorf("%s: event %s\nwant %s", name, got, c.event)
		}
		if _, _, _, ok := c.form.SplitEvent(nil, "ADDED", c.object); ok {
			t.Errorf("%s: an event has the cache's bytes", name)
		}
		if got := string(noErr(t)(c.form.AppendBookmark(nil, []byte(`{"metadata":{`+ends+`}}`)))); !strings.Contains(got, c.initial) {
			t.Errorf("%s: bookmark %s\nwant %s", name, got, c.initial)
		}
	}
}

func TestNegotiateCut(t *testing.T) {
	pods, custom := schema.GroupVersionResource{Version: "v1", Resource: "pods"}, schema.GroupVersionResource{Group: "e.c", Version: "v1", Resource: "pods"}
	const proto, asPartial = "application/vnd.kubernetes.protobuf", ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	fields := projection.Keep(nil)
	plain, partial := Choice{Fields: fields}, Choice{Partial: true, Fields: fields}
	pod := Choice{MediaType: Protobuf, Fields: fields, Message: fields.Message(pods)}
	metadata := Choice{MediaType: Protobuf, Partial: true, Fields: fields, Message: fields.Metadata()}
	if pod.Message == nil || metadata.Message == nil {
		t.Fatal("messages cannot be cut")
	}
	for _, c := range []struct {
		of     schema.GroupVersionResource
		accept string
		want   []Choice
	}{
		{pods, "", []Choice{plain}},
		{pods, "application/json", []Choice{plain}},
		{pods, "application/json, " + proto, []Choice{plain}},
		{pods, proto, []Choice{pod}},
		{pods, proto + ", application/json", []Choice{pod, plain}},
		{pods, proto + ", */*", []Choice{pod, plain}},
		{pods, "application/json;q=0.5, " + proto, []Choice{pod, plain}},
		{pods, "application/yaml, " + proto, nil},
		{pods, "application/json" + asPartial + ",*/*", []Choice{partial}},
		{pods, proto + asPartial + ",application/json" + asPartial, []Choice{metadata, partial}},
		{pods, proto + asPartial + "," + proto + ",application/json", []Choice{metadata, plain}},
		{custom, proto + ", application/json", []Choice{plain}},
		{custom, proto, nil},
		{custom, proto + asPartial + ",application/json" + asPartial, []Choice{metadata, partial}},
	} {
		if got := NegotiateCut(c.accept, Get, false, fields, c.of); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.accept, got, c.want)
		}
	}
	deep := projection.Drop([]projection.Path{{{Key: "metadata"}, {Key: "managedFields"}, {Items: true}, {Key: "fieldsV1"}, {Key: "f:spec"}}})
	for _, accept := range []string{proto + ",*/*", proto + asPartial + ",*/*"} {
		if got := NegotiateCut(accept, Get, false, deep, pods); !slices.Equal(got, []Choice{{Fields: deep}}) {
			t.Errorf("%s, into a value that cannot be cut: %+v", accept, got)
		}
	}
}

func TestAcceptsJSON(t *testing.T) {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for accept, want := range map[string]string{
		"": "", "*/*": "*/*", "application/*": "application/json", "application/*;q=0.5": "application/json;q=0.5", table: table,
		table + ",application/vnd.kubernetes.protobuf, application/json": table + ", application/json",
		"application/yaml, application/json;q=0.1":                       " application/json;q=0.1",
		"application/yaml": "refused",
		"application/vnd.kubernetes.protobuf,application/cbor": "refused",
		"text/*": "refused", "application/jsonx": "refused", "application/json-patch+json": "refused",
	} {
		got, ok := AcceptsJSON(accept)
		if ok != (want != "refused") || ok && got != want {
			t.Errorf("%q: %q, %t", accept, got, ok)
		}
	}
}
