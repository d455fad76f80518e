package watchcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"

	kjson "k8s.io/apimachinery/pkg/util/json"
)

// parsed is what a table row expects of an object.
type parsed struct {
	namespace, name, uid string
	rv                   uint64
	labels               string // "k=v,k=v"
	field                string // the first of Resource.Fields
}

func read(r *Resource, o *Object) parsed {
	var set []string
	for _, l := range o.labels {
		set = append(set, l.key.Value()+"="+l.value)
	}
	slices.Sort(set)
	p := parsed{o.Namespace(), o.Name(), o.UID(), o.ResourceVersion(), strings.Join(set, ","), ""}
	if len(r.Fields) > 0 {
		p.field = o.Value(r, 0)
	}
	return p
}

func TestParseObject(t *testing.T) {
	for name, test := range map[string]struct {
		r    *Resource
		src  string
		raw  string // how it is kept, src if empty
		want parsed
	}{
		"pod of a list": {
			Pods, `{"metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7","labels":{"app":"web"}},"spec":{"nodeName":"n1"}}`,
			"",
			parsed{"a", "web", "u1", 7, "app=web", "n1"},
		},
		"pod of a watch": {
			Pods, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7"}}`,
			`{"metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7"}}`,
			parsed{"a", "web", "u1", 7, "", ""},
		},
		"white space around": {
			Pods, " \n\t{\"metadata\":{\"name\":\"web\",\"namespace\":\"a\",\"resourceVersion\":\"7\"}}\r\n",
			`{"metadata":{"name":"web","namespace":"a","resourceVersion":"7"}}`,
			parsed{"a", "web", "", 7, "", ""},
		},
		"white space inside": {
			Pods, `{ "metadata" : { "name" : "web" , "namespace":"a", "resourceVersion"   :   "7" } }`,
			"",
			parsed{"a", "web", "", 7, "", ""},
		},
		"custom resource with sorted keys": {
			Widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"z":"1","a":"2"},"name":"w","namespace":"a","resourceVersion":"9","uid":"u"},"spec":{"color":"red"}}`,
			"",
			parsed{"a", "w", "u", 9, "a=2,z=1", "red"},
		},
		"cluster-scoped": {
			Nodes, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u","resourceVersion":"1"},"spec":{},"status":{}}`,
			`{"metadata":{"name":"n1","uid":"u","resourceVersion":"1"},"spec":{},"status":{}}`,
			parsed{"", "n1", "u", 1, "", ""},
		},
		"metadata last": {
			Pods, `{"spec":{"nodeName":"n1"},"status":{},"metadata":{"resourceVersion":"7","namespace":"a","name":"web"}}`,
			"",
			parsed{"a", "web", "", 7, "", "n1"},
		},
		"decoys": {
			Pods, `{"spec":{"metadata":{"name":"no","resourceVersion":"1"},"resourceVersion":"2","nodeName":"n1","template":{"metadata":{"labels":{"no":"no"}}}},` +
				`"metadata":{"ownerReferences":[{"name":"no","uid":"no","resourceVersion":"3"}],"annotations":{"name":"no","uid":"no","resourceVersion":"4","metadata":"no"},` +
				`"name":"web","namespace":"a","uid":"u","resourceVersion":"7","managedFields":[{"name":"no","labels":{"no":"no"}}]},"spec.nodeName":"no","x":{"spec":{"nodeName":"no"}}}`,
			"",
			parsed{"a", "web", "u", 7, "", "n1"},
		},
		"decoys in strings": {
			Pods, `{"x":"\"metadata\":{\"name\":\"no\"}","metadata":{"x":"\\","name":"web","namespace":"a","y":"\",\"resourceVersion\":\"1\"","resourceVersion":"7"}}`,
			"",
			parsed{"a", "web", "", 7, "", ""},
		},
		"other case is another key": {
			Pods, `{"Metadata":{"name":"no"},"metadata":{"Name":"no","NAME":"no","name":"web","namespace":"a","ResourceVersion":"1","resourceVersion":"7","resourceversion":"8"}}`,
			"",
			parsed{"a", "web", "", 7, "", ""},
		},
		"unicode and escapes": {
			Pods, `{"metadata":{"name":"wéb","namespace":"ä","uid":"\u0075\"\\","resourceVersion":"7","labels":{"\u0061pp":"\u003cb\u003e","日":"本","e":"\ud83d\ude00"}},"spec":{"nodeName":"n\u0031"}}`,
			"",
			parsed{"ä", "wéb", "u\"\\", 7, "app=<b>,e=😀,日=本", "n1"},
		},
		"escaped keys": {
			Pods, `{"\u006detadata":{"n\u0061me":"web","namespace":"a","resource\u0056ersion":"7"},"spe\u0063":{"nodeNam\u0065":"n1"}}`,
			"",
			parsed{"a", "web", "", 7, "", "n1"},
		},
		"nulls": {
			Pods, `{"metadata":{"name":"web","namespace":"a","creationTimestamp":null,"uid":null,"resourceVersion":"7","labels":null},"spec":{"nodeName":null},"status":null}`,
			"",
			parsed{"a", "web", "", 7, "", ""},
		},
		"empty containers": {
			Pods, `{"metadata":{"name":"web","namespace":"a","resourceVersion":"7","labels":{},"ownerReferences":[]},"spec":{},"status":[]}`,
			"",
			parsed{"a", "web", "", 7, "", ""},
		},
		"largest resourceVersion": {
			Pods, `{"metadata":{"name":"web","namespace":"a","resourceVersion":"18446744073709551615"}}`,
			"",
			parsed{"a", "web", "", 18446744073709551615, "", ""},
		},
		"kind as a field of a custom resource": {
			Widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"a","resourceVersion":"9"},"spec":{"kind":"Pod","color":"r\u0065d"}}`,
			"",
			parsed{"a", "w", "", 9, "", "red"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := []byte(test.src)
			o, err := test.r.ParseObject(src)
			if err != nil {
				t.Fatal(err)
			}
			clear(src) // the caller may use it again
			if got := read(test.r, o); got != test.want {
				t.Errorf("read %+v, want %+v", got, test.want)
			}
			raw := test.raw
			if raw == "" {
				raw = test.src
			}
			if string(o.Bytes()) != raw {
				t.Errorf("kept %s, want %s", o.Bytes(), raw)
			}
			checkObject(t, test.r, o)
		})
	}
}

func TestParseObjectRefuses(t *testing.T) {
	pod := func(metadata string) string { return `{"metadata":{` + metadata + `}}` }
	const named = `"name":"web","namespace":"a"`
	for name, test := range map[string]struct {
		r    *Resource
		src  string
		want error
	}{
		"nothing":                   {Pods, ``, ErrMalformedObject},
		"white space":               {Pods, "  \n", ErrMalformedObject},
		"array":                     {Pods, `[]`, ErrMalformedObject},
		"null":                      {Pods, `null`, ErrMalformedObject},
		"string":                    {Pods, `"{}"`, ErrMalformedObject},
		"cut off":                   {Pods, `{"metadata":{"name":"web"`, ErrMalformedObject},
		"two objects":               {Pods, `{}{}`, ErrMalformedObject},
		"trailing comma":            {Pods, `{"metadata":{"name":"web",}}`, ErrMalformedObject},
		"no metadata":               {Pods, `{}`, ErrMalformedObject},
		"metadata is null":          {Pods, `{"metadata":null}`, ErrMalformedObject},
		"metadata is an array":      {Pods, `{"metadata":[]}`, ErrMalformedObject},
		"metadata is a string":      {Pods, `{"metadata":"x"}`, ErrMalformedObject},
		"no name":                   {Pods, pod(`"namespace":"a","resourceVersion":"1"`), ErrMalformedObject},
		"empty name":                {Pods, pod(`"name":"","namespace":"a","resourceVersion":"1"`), ErrMalformedObject},
		"name is a number":          {Pods, pod(`"name":5,"namespace":"a","resourceVersion":"1"`), ErrMalformedObject},
		"no namespace":              {Pods, pod(`"name":"web","resourceVersion":"1"`), ErrMalformedObject},
		"namespace of a node":       {Nodes, pod(named + `,"resourceVersion":"1"`), ErrMalformedObject},
		"labels are a string":       {Pods, pod(named + `,"resourceVersion":"1","labels":"app"`), ErrMalformedObject},
		"labels are an array":       {Pods, pod(named + `,"resourceVersion":"1","labels":["app"]`), ErrMalformedObject},
		"a label is a number":       {Pods, pod(named + `,"resourceVersion":"1","labels":{"app":1}`), ErrMalformedObject},
		"no resourceVersion":        {Pods, pod(named), ErrOpaqueResourceVersion},
		"empty resourceVersion":     {Pods, pod(named + `,"resourceVersion":""`), ErrOpaqueResourceVersion},
		"null resourceVersion":      {Pods, pod(named + `,"resourceVersion":null`), ErrOpaqueResourceVersion},
		"resourceVersion a number":  {Pods, pod(named + `,"resourceVersion":7`), ErrOpaqueResourceVersion},
		"leading zero":              {Pods, pod(named + `,"resourceVersion":"07"`), ErrOpaqueResourceVersion},
		"negative":                  {Pods, pod(named + `,"resourceVersion":"-7"`), ErrOpaqueResourceVersion},
		"plus":                      {Pods, pod(named + `,"resourceVersion":"+7"`), ErrOpaqueResourceVersion},
		"underscore":                {Pods, pod(named + `,"resourceVersion":"1_000"`), ErrOpaqueResourceVersion},
		"hexadecimal":               {Pods, pod(named + `,"resourceVersion":"0x10"`), ErrOpaqueResourceVersion},
		"white space in it":         {Pods, pod(named + `,"resourceVersion":" 7"`), ErrOpaqueResourceVersion},
		"other digits":              {Pods, pod(named + `,"resourceVersion":"٧"`), ErrOpaqueResourceVersion},
		"escaped digit":             {Pods, pod(named + `,"resourceVersion":"\u0037"`), ErrOpaqueResourceVersion},
		"65 bits":                   {Pods, pod(named + `,"resourceVersion":"18446744073709551616"`), ErrOpaqueResourceVersion},
		"opaque":                    {Pods, pod(named + `,"resourceVersion":"abc-1"`), ErrOpaqueResourceVersion},
		"other kind":                {Pods, `{"kind":"Node","apiVersion":"v1","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformedObject},
		"status":                    {Pods, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":410}`, ErrMalformedObject},
		"other version":             {Widgets, `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformedObject},
		"kind last of a built-in":   {Pods, `{"metadata":{` + named + `,"resourceVersion":"7"},"kind":"Pod"}`, ErrMalformedObject},
		"apiVersion of a list item": {Pods, `{"apiVersion":"v1","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformedObject},
		"kind twice":                {Pods, `{"kind":"Pod","apiVersion":"v1","kind":"Pod","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformedObject},
		"only kind":                 {Pods, `{"kind":"Pod","apiVersion":"v1"}`, ErrMalformedObject},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := test.r.ParseObject([]byte(test.src)); !errors.Is(err, test.want) {
				t.Errorf("parsed with error %v, want %v", err, test.want)
			}
		})
	}
}

// checkObject holds what is true of any object.
func checkObject(t *testing.T, r *Resource, o *Object) {
	t.Helper()
	if !json.Valid(o.Bytes()) {
		t.Fatalf("kept bytes are not JSON: %.200q", o.Bytes())
	}
	if digits := string(o.raw[o.rvAt : o.rvAt+o.rvLen]); digits != strconv.FormatUint(o.rv, 10) {
		t.Fatalf("resourceVersion %d is at %q", o.rv, digits)
	}
	if o.Key() != r.Key(o.Namespace(), o.Name()) {
		t.Fatalf("key is %q of namespace %q and name %q", o.Key(), o.Namespace(), o.Name())
	}
	again, err := r.ParseObject(o.Bytes())
	if err != nil {
		t.Fatalf("kept bytes do not parse: %v", err)
	}
	if !sameObject(again, o) {
		t.Fatalf("parsed again it is %.200s, not %.200s", again.Bytes(), o.Bytes())
	}
	for _, rv := range []uint64{0, 9, 12345678901234567890} {
		at := o.At(rv)
		if at.rv != rv || o.At(o.rv).rv != o.rv {
			t.Fatalf("at %d it is at %d", rv, at.rv)
		}
		if again, err = r.ParseObject(at.Bytes()); err != nil || !sameObject(again, at) {
			t.Fatalf("at %d it is %.200s: %v", rv, at.Bytes(), err)
		}
		if back := at.At(o.rv); !sameObject(back, o) {
			t.Fatalf("at %d and back it is %.200s, not %.200s", rv, back.Bytes(), o.Bytes())
		}
	}
}

func sameObject(a, b *Object) bool {
	return a.key == b.key && bytes.Equal(a.raw, b.raw) && a.rv == b.rv && a.uid == b.uid && a.nsLen == b.nsLen &&
		slices.Equal(a.labels, b.labels) && slices.Equal(a.fields, b.fields) && a.rvAt == b.rvAt && a.rvLen == b.rvLen
}

func TestParseHugeObject(t *testing.T) {
	p := Pod{Namespace: "a", Name: "web", UID: "u", RV: 7, Pad: 3 << 20, Labels: map[string]string{}}
	for i := range 1000 {
		p.Labels[fmt.Sprint("label-", i)] = fmt.Sprint(i)
	}
	o := p.Object()
	checkObject(t, Pods, o)
	if v := o.labels.Get("label-512"); v != "512" || o.labels.Has("label-1000") {
		t.Errorf("label is %q", v)
	}
	deep := strings.Repeat(`{"x":[`, 4000) + strings.Repeat(`]}`, 4000)
	o, err := Pods.ParseObject([]byte(`{"metadata":{"name":"web","namespace":"a","resourceVersion":"7"},"spec":` + deep + `}`))
	if err != nil {
		t.Fatal(err)
	}
	checkObject(t, Pods, o)
}

// An object's strings lie in its own bytes or in memory of their own, never in
// the buffer that it was read from.
func TestObjectPinsNothing(t *testing.T) {
	src := Pod{Namespace: "a", Name: "web", UID: "u", RV: 7, Labels: map[string]string{"app": "web"}, Node: "n1"}.JSON()
	o, err := Pods.ParseObject(src)
	if err != nil {
		t.Fatal(err)
	}
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(src)))
	hi := lo + uintptr(cap(src))
	held := []string{o.key, o.uid, lend(o.raw)}
	held = append(held, o.fields...)
	for _, l := range o.labels {
		held = append(held, l.key.Value(), l.value)
	}
	for _, s := range held {
		if at := uintptr(unsafe.Pointer(unsafe.StringData(s))); s != "" && lo <= at && at < hi {
			t.Errorf("%q lies in the caller's buffer", s)
		}
	}
	if cap(o.raw) > len(o.raw)+len(o.raw)/4+16 {
		t.Errorf("%d bytes hold %d", cap(o.raw), len(o.raw))
	}
}

func TestKeyRange(t *testing.T) {
	from, to := Pods.KeyRange("a")
	for key, inside := range map[string]bool{"a/x": true, "a/": true, "a/\xff": true, "a": false, "a-b/x": false, "a.b/x": false, "a0/x": false, "b/x": false, "aa/x": false} {
		if got := from <= key && key < to; got != inside {
			t.Errorf("%q in [%q, %q): %t", key, from, to, got)
		}
	}
	if from, to := Pods.KeyRange(""); from != "" || to != "" {
		t.Errorf("all namespaces are [%q, %q)", from, to)
	}
	if from, to := Nodes.KeyRange("a"); from != "" || to != "" {
		t.Errorf("nodes are [%q, %q)", from, to)
	}
}

// decoded is the reference: apiserver's own decoder, for which keys differ by
// case.
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

var surrogate = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// decodersAgree tells whether decoders have to agree about src. They need not
// about keys that come twice, which an apiserver cannot write: it encodes
// structs and maps. Nor about broken UTF-8 and halves of surrogate pairs, which
// each decoder repairs in its own way.
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
		for _, r := range []*Resource{Pods, Widgets, Nodes} {
			o, err := r.ParseObject(src)
			if err != nil {
				if !errors.Is(err, ErrMalformedObject) && !errors.Is(err, ErrOpaqueResourceVersion) {
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
				got[l.key.Value()] = l.value
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
