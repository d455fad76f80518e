package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// parsed contains the properties that a test case expects of an object.
type parsed struct {
	namespace, name, uid string
	rv                   uint64
	labels               string // "k=v,k=v"
	field                string // the first of Resource.Fields
}

func read(r *Resource, o *Object) parsed {
	var set []string
	for _, l := range o.labels {
		set = append(set, l.Key.Value()+"="+l.Value)
	}
	slices.Sort(set)
	p := parsed{o.Namespace(), o.Name(), o.UID(), o.ResourceVersion(), strings.Join(set, ","), ""}
	if len(r.Fields) > 0 {
		p.field = o.Value(r, 0)
	}
	return p
}

func TestParseObjectRefuses(t *testing.T) {
	pod := func(metadata string) string { return `{"metadata":{` + metadata + `}}` }
	const named = `"name":"web","namespace":"a"`
	for name, test := range map[string]struct {
		r    *Resource
		src  string
		want error
	}{
		"nothing":                   {pods, ``, ErrMalformed},
		"white space":               {pods, "  \n", ErrMalformed},
		"array":                     {pods, `[]`, ErrMalformed},
		"null":                      {pods, `null`, ErrMalformed},
		"string":                    {pods, `"{}"`, ErrMalformed},
		"cut off":                   {pods, `{"metadata":{"name":"web"`, ErrMalformed},
		"two objects":               {pods, `{}{}`, ErrMalformed},
		"trailing comma":            {pods, `{"metadata":{"name":"web",}}`, ErrMalformed},
		"no metadata":               {pods, `{}`, ErrMalformed},
		"metadata is null":          {pods, `{"metadata":null}`, ErrMalformed},
		"metadata is an array":      {pods, `{"metadata":[]}`, ErrMalformed},
		"metadata is a string":      {pods, `{"metadata":"x"}`, ErrMalformed},
		"no name":                   {pods, pod(`"namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"empty name":                {pods, pod(`"name":"","namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"name is not UTF-8":         {pods, pod(`"name":"web` + "\xff" + `","namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"name may not be UTF-8":     {pods, pod(`"name":"web` + "\ufffd" + `","namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"the same, escaped":         {pods, pod(`"name":"web\ufffd","namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"half a surrogate pair":     {pods, pod(`"name":"web\ud800","namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"name is a number":          {pods, pod(`"name":5,"namespace":"a","resourceVersion":"1"`), ErrMalformed},
		"no namespace":              {pods, pod(`"name":"web","resourceVersion":"1"`), ErrMalformed},
		"namespace of a node":       {nodes, pod(named + `,"resourceVersion":"1"`), ErrMalformed},
		"labels are a string":       {pods, pod(named + `,"resourceVersion":"1","labels":"app"`), ErrMalformed},
		"labels are an array":       {pods, pod(named + `,"resourceVersion":"1","labels":["app"]`), ErrMalformed},
		"a label is a number":       {pods, pod(named + `,"resourceVersion":"1","labels":{"app":1}`), ErrMalformed},
		"no resourceVersion":        {pods, pod(named), ErrOpaqueResourceVersion},
		"empty resourceVersion":     {pods, pod(named + `,"resourceVersion":""`), ErrOpaqueResourceVersion},
		"null resourceVersion":      {pods, pod(named + `,"resourceVersion":null`), ErrOpaqueResourceVersion},
		"resourceVersion a number":  {pods, pod(named + `,"resourceVersion":7`), ErrOpaqueResourceVersion},
		"leading zero":              {pods, pod(named + `,"resourceVersion":"07"`), ErrOpaqueResourceVersion},
		"negative":                  {pods, pod(named + `,"resourceVersion":"-7"`), ErrOpaqueResourceVersion},
		"plus":                      {pods, pod(named + `,"resourceVersion":"+7"`), ErrOpaqueResourceVersion},
		"underscore":                {pods, pod(named + `,"resourceVersion":"1_000"`), ErrOpaqueResourceVersion},
		"hexadecimal":               {pods, pod(named + `,"resourceVersion":"0x10"`), ErrOpaqueResourceVersion},
		"white space in it":         {pods, pod(named + `,"resourceVersion":" 7"`), ErrOpaqueResourceVersion},
		"other digits":              {pods, pod(named + `,"resourceVersion":"٧"`), ErrOpaqueResourceVersion},
		"escaped digit":             {pods, pod(named + `,"resourceVersion":"\u0037"`), ErrOpaqueResourceVersion},
		"65 bits":                   {pods, pod(named + `,"resourceVersion":"18446744073709551616"`), ErrOpaqueResourceVersion},
		"opaque":                    {pods, pod(named + `,"resourceVersion":"abc-1"`), ErrOpaqueResourceVersion},
		"other kind":                {pods, `{"kind":"Node","apiVersion":"v1","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformed},
		"status":                    {pods, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":410}`, ErrMalformed},
		"other version":             {widgets, `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformed},
		"kind last of a built-in":   {pods, `{"metadata":{` + named + `,"resourceVersion":"7"},"kind":"Pod"}`, ErrMalformed},
		"apiVersion of a list item": {pods, `{"apiVersion":"v1","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformed},
		"kind twice":                {pods, `{"kind":"Pod","apiVersion":"v1","kind":"Pod","metadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformed},
		"metadata twice":            {pods, `{"metadata":{` + named + `,"resourceVersion":"6"},"m\u0065tadata":{` + named + `,"resourceVersion":"7"}}`, ErrMalformed},
		"an array of items":         {widgets, `{"metadata":{` + named + `,"resourceVersion":"7"},"items":[]}`, ErrMalformed},
		"only kind":                 {pods, `{"kind":"Pod","apiVersion":"v1"}`, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := test.r.ParseObject([]byte(test.src)); !errors.Is(err, test.want) {
				t.Errorf("parsed with error %v, want %v", err, test.want)
			}
		})
	}
}

// checkObject checks the properties of every object.
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

// An object's strings lie in its own bytes or in memory of their own, never in the buffer that the
// object was parsed from.
func TestObjectPinsNothing(t *testing.T) {
	src := []byte(`{"metadata":{"name":"web","namespace":"a","uid":"u","resourceVersion":"7","labels":{"app":"web"}},"spec":{"nodeName":"n1"}}`)
	o, err := pods.ParseObject(src)
	if err != nil {
		t.Fatal(err)
	}
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(src)))
	hi := lo + uintptr(cap(src))
	held := []string{o.key, o.uid, lend(o.raw)}
	held = append(held, o.fields...)
	for _, l := range o.labels {
		held = append(held, l.Key.Value(), l.Value)
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
	from, to := pods.KeyRange("a")
	for key, inside := range map[string]bool{"a/x": true, "a/": true, "a/\xff": true, "a": false, "a-b/x": false, "a.b/x": false, "a0/x": false, "b/x": false, "aa/x": false} {
		if got := from <= key && key < to; got != inside {
			t.Errorf("%q in [%q, %q): %t", key, from, to, got)
		}
	}
	if from, to := pods.KeyRange(""); from != "" || to != "" {
		t.Errorf("all namespaces are [%q, %q)", from, to)
	}
	if from, to := nodes.KeyRange("a"); from != "" || to != "" {
		t.Errorf("nodes are [%q, %q)", from, to)
	}
}

var surrogate = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// Each watch with a field selector reads the field of each changed object. So fields of long objects
// are read once, when the object arrives.
func TestFieldsOfLongObjects(t *testing.T) {
	for _, length := range []int{0, longObject} {
		o, err := pods.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"web","namespace":"a","resourceVersion":"7","annotations":{"a":%q}},"spec":{"nodeName":"n"},"status":{"phase":"Running"}}`, strings.Repeat("x", length)))
		if err != nil {
			t.Fatal(err)
		}
		kept := len(pods.Fields)
		if length == 0 {
			kept = slices.IndexFunc(pods.Fields, func(f Field) bool { return !f.Kept })
		}
		if kept < 0 || len(o.fields) != kept {
			t.Errorf("of an object with %d bytes, %d of %d fields are kept, want %d", len(o.raw), len(o.fields), len(pods.Fields), kept)
		}
		for i := range pods.Fields {
			if v, want := o.Value(pods, i), pods.Fields[i].read(JSON, o.Bytes()); v != want {
				t.Errorf("%s is %q, want %q", pods.Fields[i].Name, v, want)
			}
		}
	}
}

// A Table in an event has one row.
func TestRowsOfAnEvent(t *testing.T) {
	r := &Resource{Kind: "Pod", Namespaced: true, Encoding: Table, Columns: Columns{Definitions: []byte("[]")}}
	const row = `{"cells":[],"object":{"metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"7"}}}`
	for rows, want := range map[string]error{"": ErrMalformed, row: nil, row + "," + row: ErrMalformed} {
		src := `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"columnDefinitions":[],"rows":[` + rows + `]}`
		if _, err := r.ParseObject([]byte(src)); !errors.Is(err, want) {
			t.Errorf("%s: %v", rows, err)
		}
	}
}
