package projection

import "google.golang.org/protobuf/encoding/protowire"

// Message says which fields of a protobuf message stay. It never changes.
type Message struct {
	keep bool // whether a field or key stays that is not named below
	// fields are those of a struct. Without fields and keys, the Message is for the whole value.
	fields map[protowire.Number]*Message
	keys   map[string]*Message // the entries of a map, by their keys
}

func (m *Message) whole() bool { return m.fields == nil && m.keys == nil }

// Append appends a message's fields that stay.
func (m *Message) Append(dst, src []byte) ([]byte, error) {
	for len(src) > 0 {
		number, _, size := protowire.ConsumeField(src)
		if size < 0 {
			return dst, errMalformed
		}
		var err error
		if dst, err = appendField(dst, src[:size], m.fields[number], m.keep); err != nil {
			return dst, err
		}
		src = src[size:]
	}
	return dst, nil
}

// appendField appends what stays of a field. If there is no Message for it, keep says whether it
// stays.
func appendField(dst, field []byte, of *Message, keep bool) ([]byte, error) {
	if of != nil {
		keep = of.keep
	}
	if of == nil || of.whole() {
		if keep {
			dst = append(dst, field...)
		}
		return dst, nil
	}
	_, _, tag := protowire.ConsumeTag(field)
	value, n := protowire.ConsumeBytes(field[tag:])
	if n < 0 {
		return dst, errMalformed
	}
	if of.keys != nil {
		key, err := keyOf(value)
		if err != nil {
			return dst, err
		}
		return appendField(dst, field, of.keys[key], of.keep)
	}
	return of.appendCounted(append(dst, field[:tag]...), value)
}

// appendCounted appends what stays of a value, after its length. The new length may have fewer
// bytes than the old one, but never more.
func (m *Message) appendCounted(dst, value []byte) ([]byte, error) {
	count := len(dst)
	begin := count + protowire.SizeVarint(uint64(len(value)))
	dst, err := m.Append(protowire.AppendVarint(dst, uint64(len(value))), value)
	if err != nil {
		return dst, err
	}
	length := len(dst) - begin
	at := len(protowire.AppendVarint(dst[:count], uint64(length)))
	copy(dst[at:], dst[begin:])
	return dst[:at+length], nil
}

// Fields of a map's entry, by protobuf's definition.
const (
	entryKey   = protowire.Number(1)
	entryValue = protowire.Number(2)
)

// keyOf returns the key of a map's entry, which is a string.
func keyOf(entry []byte) (key string, err error) {
	for len(entry) > 0 {
		number, kind, size := protowire.ConsumeField(entry)
		if size < 0 {
			return "", errMalformed
		}
		if number == entryKey && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(entry)
			value, _ := protowire.ConsumeBytes(entry[tag:])
			key = string(value)
		}
		entry = entry[size:]
	}
	return key, nil
}
