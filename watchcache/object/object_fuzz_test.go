package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strconv"
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

func FuzzParseObject(f *testing.F) {
	for _, seed := range []string{
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7","labels":{"app":"web"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}`,
		`{"metadata":{"name":"w\u00e9b","namespace":"a","resourceVersion":"18446744073709551615","labels":{"a":"<","b":null}},"spec":{"nodeName":null}}`,
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"z":"1","a":"2"},"name":"w","namespace":"a","resourceVersion":"9","uid":"u"},"spec":{"color":"red"}}`,
		`{"metadata":{"name":"n1","resourceVersion":"0"}}`,
		`{"metadata":{"name":"a","name":"b","namespace":"c","resourceVersion":"1","resourceVersion":"2"}}`,
		`{"metadata":{"name":"a","namespace":"c","resourceVersion":"\u0031"}}`,
		`{"spec":[{"nodeName":"x"}],"metadata":{"name":"a","namespace":"c","resourceVersion":"1","labels":[]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, r := range []*Resource{pods, widgets, nodes} {
			o, err := r.ParseObject(src)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrOpaqueResourceVersion) {
					t.Fatalf("neither malformed nor opaque: %v", err)
				}
				continue
			}
			checkObject(t, r, o)
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
