package wire

import (
	"slices"
	"strings"
	"testing"
)

const (
	table       = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partialList = ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	partialOne  = ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	protobuf    = "application/vnd.kubernetes.protobuf"
)

var (
	plain     = Choice{}
	inYAML    = Choice{MediaType: YAML}
	inProto   = Choice{MediaType: Protobuf}
	metaJSON  = Choice{Partial: true}
	metaProto = Choice{MediaType: Protobuf, Partial: true}
	indented  = Choice{Pretty: true}
	inTable   = Choice{Table: true}
)

// The differential suite compares negotiation with kube-apiserver's. This test lists the cases.
func TestNegotiate(t *testing.T) {
	for _, tc := range []struct {
		accept string
		read   Read
		want   []Choice
	}{
		{"", List, []Choice{plain}},
		{"application/json", List, []Choice{plain}},
		{"*/*", Watch, []Choice{plain}},
		{"application/json;q=0", Get, []Choice{plain}},
		{"application/yaml, application/json", List, nil},
		{"application/yaml, application/json", Watch, nil},
		{"application/json;q=0.5, application/yaml", Get, nil},
		{"application/json, application/yaml", Get, []Choice{plain}},
		{protobuf + ",application/yaml", List, []Choice{inProto}},
		{protobuf, List, []Choice{inProto}},
		{protobuf + ",application/json", List, []Choice{inProto, plain}},
		{protobuf + ",application/json;q=0.5," + table, List, []Choice{inProto, inTable}},
		{protobuf + ";stream=watch", Watch, []Choice{inProto}},
		{protobuf + ";stream=other,application/json", Watch, []Choice{plain}},
		{protobuf + partialList + ",application/json" + partialList + ",application/json", List, []Choice{metaProto}},
		{"application/json" + partialOne, Watch, []Choice{metaJSON}},
		{"application/json" + partialOne, List, nil},
		{"application/json" + partialList, Get, nil},
		{"application/json" + partialList, Watch, nil},
		{"application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io", List, nil},
		{"application/json;as=PartialObjectMetadataList;v=v2;g=meta.k8s.io,application/json", List, []Choice{plain}},
		{"application/json;as=Nonsense;v=v1;g=meta.k8s.io,application/json", List, []Choice{plain}},
		{"application/json;v=v1,application/yaml", Get, nil},
		{table, List, []Choice{inTable}},
		{table + ",application/json", Watch, []Choice{inTable}},
		{table + ";pretty=1", Get, []Choice{{Table: true, Pretty: true}}},
		{"application/yaml;as=Table;v=v1;g=meta.k8s.io", List, nil},
		{"application/json;as=Table;v=v1beta1;g=meta.k8s.io", List, nil},
		{protobuf + ";as=Table;v=v1;g=meta.k8s.io,application/json", List, []Choice{plain}},
		{"application/json;pretty=1", List, []Choice{indented}},
		{"application/json;pretty=1", Watch, []Choice{plain}},
		{"application/json;pretty=true", List, []Choice{plain}},
		{"application/cbor, application/json", List, nil},
		{"application/*", List, nil},
		{"*", List, nil},
		{"*, */*", List, []Choice{plain}},
		{"text/html, application/xml;q=0.9, */*;q=0.8", List, []Choice{plain}},
		{"text/html", List, nil},
		{"Application/JSON", List, nil},
		{"application/json;sv=v1", List, nil},
		{"application/json;sv=v1;stream=other,application/yaml", List, nil},
		{"application/json;sv=", List, []Choice{plain}},
		{"application/json;charset=utf-8;profile=x", List, []Choice{plain}},
		{"application/json;drop=metadata.managedFields", List, nil},
		{protobuf + ",application/json;drop=metadata.managedFields", List, []Choice{inProto}},
		{table + ";drop=metadata.managedFields,application/json", List, nil},
		{"application/json" + strings.Repeat(", text/x", 12), List, nil},
	} {
		if got := Negotiate(tc.accept, tc.read, false); !slices.Equal(got, tc.want) {
			t.Errorf("%q for %d: %v, want %v", tc.accept, tc.read, got, tc.want)
		}
	}
}

func TestNegotiateError(t *testing.T) {
	for accept, want := range map[string]Choice{
		"":                                plain,
		"application/json":                plain,
		table + ",application/json":       plain,
		table:                             indented, // no clause fits a Status
		protobuf + partialList:            indented,
		protobuf + ",application/json":    inProto,
		"application/yaml":                inYAML,
		"*/*":                             plain,
		"text/html":                       indented,
		"application/json;v=v1":           indented,
		"application/json;sv=v1":          indented,
		"application/yaml;sv=,text/html":  inYAML,
		"application/json;stream=garbage": indented,
	} {
		if got := NegotiateError(accept, false); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
	}
}

// No header makes Negotiate panic. A clause names each returned form. Only after plain protobuf may
// another form follow.
func FuzzNegotiate(f *testing.F) {
	for _, s := range []string{
		"", "*/*", "application/json;q=0.5,application/yaml", table, protobuf + partialList + ",application/json", ",", ";q=", "application/json;q=NaN", "*",
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;pretty=1, application/*;stream=watch",
	} {
		for read := range 3 {
			f.Add(s, uint8(read), read == 0)
		}
	}
	f.Fuzz(func(t *testing.T, accept string, read uint8, pretty bool) {
		choices := Negotiate(accept, Read(read%3), pretty)
		for i, c := range choices {
			last := i == len(choices)-1
			name := []string{"json", "yaml", "protobuf"}[c.MediaType]
			switch {
			case accept != "" && !strings.Contains(accept, name) && !strings.Contains(accept, "*/*"):
				t.Errorf("%q is taken for %s", accept, name)
			case c.Partial && !strings.Contains(accept, "PartialObjectMetadata"):
				t.Errorf("%q is taken for metadata", accept)
			case c.Pretty && (c.MediaType != JSON || Read(read%3) == Watch):
				t.Errorf("%q is indented", accept)
			case !last && (c.MediaType != Protobuf || c.Partial):
				t.Errorf("%q: %v is not the last of %v", accept, c, choices)
			case c.MediaType == YAML:
				t.Errorf("%q: YAML from the cache", accept)
			}
		}
		if c := NegotiateError(accept, pretty); c.Partial {
			t.Errorf("%q: metadata of an error", accept)
		}
	})
}

func TestPretty(t *testing.T) {
	for _, tc := range []struct {
		query, agent string
		want         bool
	}{
		{"", "kubectl/v1.36.3", false},
		{"", "curl/8.0", true},
		{"", "Mozilla/5.0 (X11)", true},
		{"", "Wget/1.2", true},
		{"pretty=0", "curl/8.0", false},
		{"pretty=false", "curl/8.0", false},
		{"pretty=nonsense", "curl/8.0", false},
		{"pretty=", "curl/8.0", true},
		{"pretty=true", "kubectl", true},
		{"limit=1&pretty=1", "kubectl", true},
	} {
		if got := Pretty(tc.query, tc.agent); got != tc.want {
			t.Errorf("Pretty(%q, %q) = %t", tc.query, tc.agent, got)
		}
	}
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "deflate, gzip": true, "gzip,deflate": true, "gzip;q=1": false, "gzip;q=0": false, "GZIP": false, "identity": false, "*": false,
	} {
		if got := AcceptsGzip(header); got != want {
			t.Errorf("%q: %t", header, got)
		}
	}
}

// Clients of Tables and of metadata may accept the objects, too.
func TestAcceptsPlain(t *testing.T) {
	const table, partial = "application/json;as=Table;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf; as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	for accept, want := range map[string]string{
		table + "," + table + ",application/json":                    "application/json",
		partial + "," + table + ", application/json;q=0.5,*/*;q=0.1": " application/json;q=0.5,*/*;q=0.1",
		table: "", "": "", "application/json": "", partial + "," + table: "",
	} {
		if got, ok := AcceptsPlain(accept); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %t, want %q", accept, got, ok, want)
		}
	}
}
