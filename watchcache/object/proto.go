package object

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WirePath is the place of a value in a protobuf message: field numbers, outermost first.
type WirePath struct {
	Numbers []protowire.Number
	Bool    bool // the varint is a boolean, not an integer
}

// NewWirePath returns the path of a field of a Go type of the API. names are the field's JSON names
// ("spec.nodeName"). The field numbers come from the protobuf tags.
func NewWirePath(message reflect.Type, names string) (WirePath, bool) {
	var p WirePath
	for name := range strings.SplitSeq(names, ".") {
		f, ok := fieldNamed(message, name)
		if !ok {
			return WirePath{}, false
		}
		number, ok := fieldNumber(f)
		if !ok {
			return WirePath{}, false
		}
		p.Numbers = append(p.Numbers, number)
		if message = f.Type; message.Kind() == reflect.Pointer {
			message = message.Elem()
		}
	}
	p.Bool = message.Kind() == reflect.Bool
	return p, true
}

func fieldNamed(message reflect.Type, name string) (reflect.StructField, bool) {
	if message.Kind() != reflect.Struct {
		return reflect.StructField{}, false
	}
	for f := range message.Fields() {
		if json, _, _ := strings.Cut(f.Tag.Get("json"), ","); json == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// fieldNumber reads a tag such as `protobuf:"bytes,10,opt,name=nodeName"`.
func fieldNumber(f reflect.StructField) (protowire.Number, bool) {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return 0, false
	}
	n, err := strconv.ParseInt(parts[1], 10, 32)
	return protowire.Number(n), err == nil
}

func numberOf[Message any](name string) protowire.Number {
	p, ok := NewWirePath(reflect.TypeFor[Message](), name)
	if !ok {
		panic("BUG: no field " + name)
	}
	return p.Numbers[0]
}

// These fields exist in all objects and lists. The API itself reads objects of unknown types as
// PartialObjectMetadata.
var (
	metadataNumber        = numberOf[metav1.PartialObjectMetadata]("metadata")
	itemsNumber           = numberOf[metav1.PartialObjectMetadataList]("items")
	nameNumber            = numberOf[metav1.ObjectMeta]("name")
	namespaceNumber       = numberOf[metav1.ObjectMeta]("namespace")
	uidNumber             = numberOf[metav1.ObjectMeta]("uid")
	resourceVersionNumber = numberOf[metav1.ObjectMeta]("resourceVersion")
	labelsNumber          = numberOf[metav1.ObjectMeta]("labels")
	annotationsNumber     = numberOf[metav1.ObjectMeta]("annotations")
)

// Fields of a map entry, by protobuf's definition.
const (
	entryKey   = protowire.Number(1)
	entryValue = protowire.Number(2)
)

type protoField struct {
	number protowire.Number
	kind   protowire.Type
	bytes  []byte // set if the field is length-delimited
	varint uint64
	// start and end are the offsets of the field in the message, including its tag.
	start, end int
}

func eachField(message []byte, visit func(protoField) bool) error {
	for at := 0; at < len(message); {
		f := protoField{start: at}
		var n int
		f.number, f.kind, n = protowire.ConsumeTag(message[at:])
		if n < 0 {
			return Malformed("byte %d is no protobuf tag: %w", at, protowire.ParseError(n))
		}
		at += n
		switch f.kind {
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(message[at:])
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(message[at:])
		default:
			n = protowire.ConsumeFieldValue(f.number, f.kind, message[at:])
		}
		if n < 0 {
			return Malformed("protobuf field %d: %w", f.number, protowire.ParseError(n))
		}
		at += n
		f.end = at
		if !visit(f) {
			return nil
		}
	}
	return nil
}

// Value returns the value at the path in the form that kube-apiserver compares with a selector. It
// returns "" if there is no value. If the field occurs several times, the last value counts.
func (p WirePath) Value(message []byte) (value string) {
	number, rest := p.Numbers[0], p.Numbers[1:]
	_ = eachField(message, func(f protoField) bool { // a malformed message has no value
		switch {
		case f.number != number:
		case len(rest) > 0 && f.kind == protowire.BytesType:
			value = WirePath{rest, p.Bool}.Value(f.bytes)
		case len(rest) > 0:
		case f.kind == protowire.BytesType:
			value = lend(f.bytes)
		case f.kind == protowire.VarintType && p.Bool:
			value = strconv.FormatBool(f.varint != 0)
		case f.kind == protowire.VarintType:
			value = strconv.FormatInt(int64(f.varint), 10)
		}
		return true
	})
	return value
}

func (r *Resource) parseProto(src []byte) (*Object, error) {
	raw, lead := asItem(src)
	m, err := readProtoMetadata(raw[lead:])
	if err != nil {
		return nil, err
	}
	return r.object(raw, lead, &m)
}

// asItem copies an object and adds the tag and length of a list item.
func asItem(object []byte) (raw []byte, lead int) {
	lead = protowire.SizeTag(itemsNumber) + protowire.SizeVarint(uint64(len(object)))
	raw = protowire.AppendTag(make([]byte, 0, lead+len(object)), itemsNumber, protowire.BytesType)
	return protowire.AppendBytes(raw, object), lead
}

func metadataOf(object []byte) (meta protoField, err error) {
	found := 0
	err = eachField(object, func(f protoField) bool {
		if f.number == metadataNumber && f.kind == protowire.BytesType {
			meta = f
			found++
		}
		return true
	})
	if err == nil && found != 1 {
		err = Malformed("%d times metadata", found)
	}
	return meta, err
}

func readProtoMetadata(object []byte) (m metadata, err error) {
	meta, err := metadataOf(object)
	if err != nil {
		return m, err
	}
	var rv []byte
	var broken error
	versions := 0
	err = eachField(meta.bytes, func(f protoField) bool {
		if f.kind != protowire.BytesType {
			return true
		}
		switch f.number {
		case nameNumber:
			m.name = lend(f.bytes)
		case namespaceNumber:
			m.namespace = lend(f.bytes)
		case uidNumber:
			m.uid = lend(f.bytes)
		case resourceVersionNumber:
			rv = f.bytes
			versions++
		case labelsNumber:
			var key, value string
			key, value, broken = readEntry(f.bytes)
			m.labels.Add(key, value)
		}
		return broken == nil
	})
	if err = cmp.Or(err, broken); err != nil {
		return m, err
	}
	m.labels.Order()
	m.rv, err = ParseResourceVersion(lend(rv))
	if err != nil || versions != 1 {
		return m, fmt.Errorf("%w: that of %q is %q", ErrOpaqueResourceVersion, m.name, rv)
	}
	return m, nil
}

func readEntry(entry []byte) (key, value string, err error) {
	err = eachField(entry, func(f protoField) bool {
		switch {
		case f.kind != protowire.BytesType:
		case f.number == entryKey:
			key = lend(f.bytes)
		case f.number == entryValue:
			value = lend(f.bytes)
		}
		return true
	})
	return key, value, err
}

// protoAt is [Object.At] for protobuf. If the number of digits changes, the lengths of the
// enclosing messages change, too.
func protoAt(o *Object, rv uint64) *Object {
	t, _, err := protoTemplateOf(o.Bytes())
	if err != nil {
		panic("BUG: kept an object that cannot be read: " + err.Error())
	}
	at := *o
	raw, lead := asItem(t.append(make([]byte, 0, len(o.raw)+20), rv, false))
	at.raw, at.rv, at.lead = raw, rv, int32(lead)
	return &at
}
