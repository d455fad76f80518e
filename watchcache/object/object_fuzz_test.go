package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	kjson "k8s.io/apimachinery/pkg/util/json"
)

// decoded is the reference: the result of apiserver's own decoder, which is case-sensitive.
type decoded struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
		Color    string `json:"color"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// decodersAgree reports whether different decoders have to agree about src. They may differ on
// duplicate keys. An apiserver cannot write these, because it encodes structs and maps. They may
// also differ on invalid UTF-8 and unpaired surrogates, because each decoder repairs these
// differently.
func decodersAgree(src []byte) bool {
	return utf8.Valid(src) && !surrogate.Match(src) && uniqueKeys(json.NewDecoder(bytes.NewReader(src)))
}

func uniqueKeys(d *json.Decoder) bool {
	var open []map[string]bool // nil for an array
	key := false               // the next token is a key
	for {
		token, err := d.Token()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				open, key = append(open, map[string]bool{}), true
				continue
			case '[':
				open, key = append(open, nil), false
				continue
			}
			open = open[:len(open)-1]
		case string:
			if key {
				keys := open[len(open)-1]
				if keys[v] {
					return false
				}
				keys[v], key = true, false
				continue
			}
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}

// An object has the properties that apiserver's own decoder reads, and the bytes that came, without kind and
// apiVersion unless it is a custom one.
func FuzzParseObject(f *testing.F) {
	resources := []*Resource{pods, widgets, nodes}
	for _, seed := range []string{ // all of them are objects
		`{"metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7","labels":{"app":"web"}},"spec":{"nodeName":"n1"}}`,                                              // pod of a list
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7"}}`,                                                               // pod of a watch
		" \n\t{\"metadata\":{\"name\":\"web\",\"namespace\":\"a\",\"resourceVersion\":\"7\"}}\r\n",                                                                                  // white space around
		`{ "metadata" : { "name" : "web" , "namespace":"a", "resourceVersion"   :   "7" } }`,                                                                                        // white space inside
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"z":"1","a":"2"},"name":"w","namespace":"a","resourceVersion":"9","uid":"u"},"spec":{"color":"red"}}`, // custom resource with sorted keys
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u","resourceVersion":"1"},"spec":{},"status":{}}`,                                                          // cluster-scoped
		`{"spec":{"nodeName":"n1"},"status":{},"metadata":{"resourceVersion":"7","namespace":"a","name":"web"}}`,                                                                    // metadata last
		`{"spec":{"metadata":{"name":"no","resourceVersion":"1"},"resourceVersion":"2","nodeName":"n1","template":{"metadata":{"labels":{"no":"no"}}}},` +
			`"metadata":{"ownerReferences":[{"name":"no","uid":"no","resourceVersion":"3"}],"annotations":{"name":"no","uid":"no","resourceVersion":"4","metadata":"no"},` +
			`"name":"web","namespace":"a","uid":"u","resourceVersion":"7","managedFields":[{"name":"no","labels":{"no":"no"}}]},"spec.nodeName":"no","x":{"spec":{"nodeName":"no"}}}`, // decoys
		`{"x":"\"metadata\":{\"name\":\"no\"}","metadata":{"x":"\\","name":"web","namespace":"a","y":"\",\"resourceVersion\":\"1\"","resourceVersion":"7"}}`,                                  // decoys in strings
		`{"Metadata":{"name":"no"},"metadata":{"Name":"no","NAME":"no","name":"web","namespace":"a","ResourceVersion":"1","resourceVersion":"7","resourceversion":"8"}}`,                      // other case is another key
		`{"metadata":{"name":"wéb","namespace":"ä","uid":"\u0075\"\\","resourceVersion":"7","labels":{"\u0061pp":"\u003cb\u003e","日":"本","e":"\ud83d\ude00"}},"spec":{"nodeName":"n\u0031"}}`, // unicode and escapes
		`{"\u006detadata":{"n\u0061me":"web","namespace":"a","resource\u0056ersion":"7"},"spe\u0063":{"nodeNam\u0065":"n1"}}`,                                                                 // escaped keys
		`{"metadata":{"name":"web","namespace":"a","creationTimestamp":null,"uid":null,"resourceVersion":"7","labels":null},"spec":{"nodeName":null},"status":null}`,                          // nulls
		`{"metadata":{"name":"web","namespace":"a","resourceVersion":"7","labels":{},"ownerReferences":[]},"spec":{},"status":[]}`,                                                            // empty containers
		`{"metadata":{"name":"web","namespace":"a","resourceVersion":"18446744073709551615"}}`,                                                                                                // largest resourceVersion
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"a","resourceVersion":"9"},"spec":{"kind":"Pod","color":"r\u0065d"}}`,                              // kind as a field of a custom resource
		`{"metadata":{"name":"n1","resourceVersion":"0"}}`,
	} {
		f.Add([]byte(seed))
		if !slices.ContainsFunc(resources, func(r *Resource) bool { _, err := r.ParseObject([]byte(seed)); return err == nil }) {
			f.Errorf("refused: %s", seed)
		}
	}
	for _, seed := range []string{
		`{"metadata":{"name":"a","name":"b","namespace":"c","resourceVersion":"1","resourceVersion":"2"}}`,
		`{"metadata":{"name":"a","namespace":"c","resourceVersion":"\u0031"}}`,
		`{"spec":[{"nodeName":"x"}],"metadata":{"name":"a","namespace":"c","resourceVersion":"1","labels":[]}}`,
	} {
		f.Add([]byte(seed))
	}
	deep := strings.Repeat(`{"x":[`, 4000) + strings.Repeat(`]}`, 4000)
	f.Add([]byte(`{"metadata":{"name":"web","namespace":"a","resourceVersion":"7"},"spec":` + deep + `}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, r := range resources {
			o, err := r.ParseObject(src)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrOpaqueResourceVersion) {
					t.Fatalf("neither malformed nor opaque: %v", err)
				}
				continue
			}
			checkObject(t, r, o)
			kept := string(bytes.TrimSpace(src))
			if rest, ok := strings.CutPrefix(kept, "{"+r.typeMeta()); ok && !r.SelfDescribing {
				kept = "{" + rest
			}
			if string(o.Bytes()) != kept {
				t.Fatalf("kept %s of %s", o.Bytes(), src)
			}
			var want decoded
			if !decodersAgree(src) || kjson.Unmarshal(src, &want) != nil {
				continue
			}
			m := want.Metadata
			if o.Name() != m.Name || o.Namespace() != m.Namespace || o.UID() != m.UID ||
				strconv.FormatUint(o.ResourceVersion(), 10) != m.ResourceVersion {
				t.Fatalf("read %+v, want %+v", read(r, o), m)
			}
			got := map[string]string{}
			for _, l := range o.labels {
				got[l.Key.Value()] = l.Value
			}
			if !maps.Equal(got, m.Labels) || len(got) != len(o.labels) {
				t.Fatalf("labels are %v, want %v", o.labels, m.Labels)
			}
			fields := map[string]string{"spec.nodeName": want.Spec.NodeName, "status.phase": want.Status.Phase, "spec.color": want.Spec.Color}
			for i, f := range r.Fields {
				if got := o.Value(r, i); got != fields[f.Name] {
					t.Fatalf("%s is %q, want %q", f.Name, got, fields[f.Name])
				}
			}
		}
	})
}
