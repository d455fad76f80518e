package object

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/labels"
)

var (
	// ErrOpaqueResourceVersion means that a resourceVersion is not a plain decimal integer. Such
	// resourceVersions cannot be compared, so the resource must not be cached.
	ErrOpaqueResourceVersion = errors.New("resourceVersion is not a plain decimal integer")
	// ErrMalformed means that bytes are not a Kubernetes object of the expected resource.
	ErrMalformed = errors.New("malformed object")
)

// Malformed returns an error that wraps [ErrMalformed].
func Malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, slices.Insert(args, 0, any(ErrMalformed))...)
}

// Object is one version of an API object: the bytes that upstream sent, and the parts that the
// parser extracted. It never changes. It does not keep the parsed buffer alive.
//
// The bytes have the form of a list item, because most of the bytes that the proxy sends are in
// lists. JSON of built-in types lacks kind and apiVersion; proxy/wire adds them for a watch event
// or a get. JSON of custom resources is unchanged. Protobuf begins with the tag and the length that
// make the object a field of the list. A row of a Table is kept without its object, behind a header
// with the arrival time (see rowLead).
type Object struct {
	key    string
	raw    []byte // as a list item
	rv     uint64
	uid    string
	labels labelSet
	fields []string // values of the kept Resource.Fields
	lead   int32    // offset of the object itself in raw
	rvAt   int32    // offset of metadata.resourceVersion's digits in raw
	rvLen  int32    // number of digits at rvAt
	nsLen  int32    // length of the namespace in key; 0 if cluster-scoped
}

// Key returns "namespace/name", or "name" for cluster-scoped resources.
func (o *Object) Key() string { return o.key }

// Namespace returns metadata.namespace, or "" for cluster-scoped resources.
func (o *Object) Namespace() string { return o.key[:o.nsLen] }

// Name returns metadata.name.
func (o *Object) Name() string {
	if o.nsLen == 0 {
		return o.key
	}
	return o.key[o.nsLen+1:]
}

// ResourceVersion returns metadata.resourceVersion.
func (o *Object) ResourceVersion() uint64 { return o.rv }

// Written returns the resourceVersion in the content, which At changes together with the number.
func (o *Object) Written() uint64 { return o.rv }

// UID returns metadata.uid.
func (o *Object) UID() string { return o.uid }

// Labels returns metadata.labels.
func (o *Object) Labels() labels.Labels { return o.labels }

// Item returns the object as a list item: with its tag and length in protobuf, without commas in
// JSON. The bytes must not be modified.
func (o *Object) Item() []byte { return o.raw }

// Bytes returns the object itself: in JSON, the same as Item. The bytes must not be modified.
func (o *Object) Bytes() []byte { return o.raw[o.lead:] }

// Value returns the value of the field r.Fields[i].
func (o *Object) Value(r *Resource, i int) string {
	if i < len(o.fields) {
		return o.fields[i]
	}
	return r.Fields[i].read(r.Encoding, o.Bytes())
}

// Alike reports whether every selector has the same result for two versions of an object.
func (r *Resource) Alike(a, b *Object) bool {
	for i := range r.Fields {
		if a.Value(r, i) != b.Value(r, i) {
			return false
		}
	}
	return slices.Equal(a.labels, b.labels)
}

// At returns the same object at another resourceVersion. kube-apiserver shows a deleted object, or
// an object that left a selection, at the revision of that change.
func (o *Object) At(rv uint64) *Object {
	if rv == o.rv {
		return o
	}
	switch {
	case o.lead == rowLead && o.rvLen == 0: // a row without its resourceVersion
		at := *o
		at.rv = rv
		return &at
	case o.lead > 0 && o.lead != rowLead:
		return protoAt(o, rv)
	}
	raw := make([]byte, 0, len(o.raw)+20-int(o.rvLen))
	raw = append(raw, o.raw[:o.rvAt]...)
	raw = strconv.AppendUint(raw, rv, 10)
	digits := len(raw) - int(o.rvAt)
	raw = append(raw, o.raw[o.rvAt+o.rvLen:]...)
	at := *o
	at.raw, at.rv, at.rvLen = raw, rv, int32(digits)
	return &at
}

// ParseObject reads an object of r: JSON from a watch event, a get or a list item, a bare protobuf
// message, or a Table with one row. It copies the parts that it keeps, so the caller may reuse src.
// Errors wrap [ErrMalformed] or [ErrOpaqueResourceVersion].
func (r *Resource) ParseObject(src []byte) (*Object, error) {
	switch r.Encoding {
	case Protobuf:
		return r.parseProto(src)
	case Table:
		return r.parseTable(src)
	}
	return r.parseJSON(src)
}

func (r *Resource) parseJSON(src []byte) (*Object, error) {
	src = bytes.TrimSpace(src)
	if !gjson.ValidBytes(src) || len(src) == 0 || src[0] != '{' {
		return nil, Malformed("not a JSON object")
	}
	raw := r.itemForm(src)
	top, err := readTop(r, raw)
	if err != nil {
		return nil, err
	}
	m, err := readMetadata(raw, top)
	if err != nil {
		return nil, err
	}
	return r.object(raw, 0, &m)
}

type metadata struct {
	namespace, name, uid string
	rv                   uint64
	rvAt, rvLen          int32 // the place of rv's digits; not for protobuf
	labels               labelSet
}

// object returns the object with the bytes raw. It is at the offset lead.
func (r *Resource) object(raw []byte, lead int, m *metadata) (*Object, error) {
	if err := r.check(m); err != nil {
		return nil, err
	}
	o := &Object{
		key: r.Key(m.namespace, m.name), raw: raw, rv: m.rv, uid: m.uid, labels: m.labels,
		lead: int32(lead), rvAt: m.rvAt, rvLen: m.rvLen, nsLen: int32(len(m.namespace)),
	}
	if r.Encoding == Table {
		return o, nil
	}
	for i := range r.Fields {
		if !r.Fields[i].Kept && len(raw) < longObject {
			break
		}
		o.fields = append(o.fields, r.Fields[i].read(r.Encoding, o.Bytes()))
	}
	return o, nil
}

// check checks an object's name and namespace. kube-apiserver checks only the path separators in
// some names, and a client that writes protobuf can use bytes that are not UTF-8. In JSON all of
// them become U+FFFD, so such a name may be that of several objects.
func (r *Resource) check(m *metadata) error {
	switch {
	case m.name == "":
		return Malformed("no metadata.name")
	case r.Encoding != Protobuf && !exact(m.name):
		return Malformed("metadata.name %q is not exact in JSON", m.name)
	case r.Namespaced != (m.namespace != ""):
		return Malformed("%s %q in namespace %q, but namespaced is %t",
			r.GVR.Resource, m.name, m.namespace, r.Namespaced)
	}
	return nil
}

// exact reports whether no other text is the same in JSON: s is UTF-8 and contains no U+FFFD.
func exact(s string) bool { return !strings.ContainsRune(s, utf8.RuneError) }

// longObject is the length from which all fields are kept. Each watch with a selector reads the
// field of each changed object, and a read of a long object takes up to a millisecond.
const longObject = 8 << 10

// itemForm returns a copy of src as a list item. For built-in types, it drops kind and apiVersion.
func (r *Resource) itemForm(src []byte) []byte {
	if !r.SelfDescribing {
		if rest, ok := bytes.CutPrefix(src[1:], []byte(r.typeMeta())); ok {
			raw := make([]byte, 0, len(rest)+1)
			return append(append(raw, '{'), rest...)
		}
	}
	return bytes.Clone(src)
}

// readTop returns the metadata. It checks kind and apiVersion if they are present.
func readTop(r *Resource, raw []byte) (meta gjson.Result, err error) {
	top := gjson.Parse(lend(raw))
	top.ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "metadata":
			if meta.Exists() { // decoders disagree which of them counts
				err = Malformed("metadata twice")
			}
			meta = v
		case "kind":
			if v.Str != r.Kind {
				err = Malformed("kind %q instead of %q", v.Str, r.Kind)
			} else if !r.SelfDescribing {
				err = Malformed("kind is not the first key of a %s", r.Kind)
			}
		case "apiVersion":
			if v.Str != r.APIVersion() {
				err = Malformed("apiVersion %q instead of %q", v.Str, r.APIVersion())
			} else if !r.SelfDescribing {
				err = Malformed("apiVersion does not follow the kind of a %s", r.Kind)
			}
		case "items": // kube-apiserver takes such a custom resource for a list, and fails
			if r.SelfDescribing && v.IsArray() {
				err = Malformed("a %s with an array of items", r.Kind)
			}
		}
		return err == nil
	})
	if err != nil {
		return meta, err
	}
	if !meta.IsObject() {
		return meta, Malformed("no metadata")
	}
	return meta, nil
}

func readMetadata(raw []byte, meta gjson.Result) (m metadata, err error) {
	var rv gjson.Result
	labelled := true
	meta.ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "name":
			m.name = v.Str
		case "namespace":
			m.namespace = v.Str
		case "uid":
			m.uid = v.Str
		case "resourceVersion":
			rv = v
		case "labels":
			m.labels, labelled = readLabels(v)
		}
		return true
	})
	if !labelled {
		return m, Malformed("metadata.labels of %q is not a map of strings", m.name)
	}
	m.rv, err = ParseResourceVersion(rv.Str)
	if err != nil || rv.Type != gjson.String {
		return m, fmt.Errorf("%w: that of %q is %s", ErrOpaqueResourceVersion, m.name, rv.Raw)
	}
	m.rvAt, m.rvLen = int32(rv.Index+1), int32(len(rv.Raw)-2)
	if got := lend(raw[m.rvAt : m.rvAt+m.rvLen]); got != rv.Str {
		return m, fmt.Errorf("%w: that of %q is %q", ErrOpaqueResourceVersion, m.name, got)
	}
	return m, nil
}

// ParseResourceVersion reads a comparable resourceVersion: decimal digits without leading zeros, at
// most 64 bits (KEP-5504).
func ParseResourceVersion(s string) (uint64, error) {
	rv, err := strconv.ParseUint(s, 10, 64)
	if err != nil || s[0] == '0' && s != "0" {
		return 0, fmt.Errorf("%w: %q", ErrOpaqueResourceVersion, s)
	}
	return rv, nil
}

// lend returns a string that shares the memory of b. b must not change any more.
func lend(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
