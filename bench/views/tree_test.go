package views

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// A tree is a decoded JSON value that keeps the order of members: *object, list, string,
// json.Number, bool or nil.
type tree any

type object struct{ members []member }

type member struct {
	key   string
	value tree
}

type list []tree

// get returns the value of a member, or nil.
func (o *object) get(key string) tree {
	for _, m := range o.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// with returns the object with another value of a member, if it has the member.
func (o *object) with(key string, value tree) *object {
	changed := &object{slices.Clone(o.members)}
	for i := range changed.members {
		if changed.members[i].key == key {
			changed.members[i].value = value
		}
	}
	return changed
}

// without returns the object without a member.
func (o *object) without(key string) *object {
	return &object{slices.DeleteFunc(slices.Clone(o.members), func(m member) bool { return m.key == key })}
}

// at returns the value at some keys, or nil.
func at(t tree, keys ...string) tree {
	for _, key := range keys {
		o, ok := t.(*object)
		if !ok {
			return nil
		}
		t = o.get(key)
	}
	return t
}

// textAt returns the string at some keys, or "".
func textAt(t tree, keys ...string) string {
	text, _ := at(t, keys...).(string)
	return text
}

// decode decodes a single value.
func decode(body []byte) (tree, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	t, err := decodeValue(d)
	if err != nil {
		return nil, fmt.Errorf("%w in %.300q", err, body)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one value in %.300q", body)
	}
	return t, nil
}

func decodeValue(d *json.Decoder) (tree, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		o := &object{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := decodeValue(d)
			if err != nil {
				return nil, err
			}
			o.members = append(o.members, member{key.(string), value})
		}
		_, err = d.Token()
		return o, err
	case json.Delim('['):
		l := list{}
		for d.More() {
			item, err := decodeValue(d)
			if err != nil {
				return nil, err
			}
			l = append(l, item)
		}
		_, err = d.Token()
		return l, err
	}
	return token, nil
}

// differs returns the place of the first difference between two trees, and both values there; "" if
// the trees are equal.
func differs(want, got tree, place string) string {
	switch w := want.(type) {
	case *object:
		g, ok := got.(*object)
		if !ok {
			break
		}
		for i := range max(len(w.members), len(g.members)) {
			if i == len(w.members) || i == len(g.members) || w.members[i].key != g.members[i].key {
				return fmt.Sprintf("%s has the members %q instead of %q", place, g.keys(), w.keys())
			}
			if d := differs(w.members[i].value, g.members[i].value, fmt.Sprintf("%s[%q]", place, w.members[i].key)); d != "" {
				return d
			}
		}
		return ""
	case list:
		g, ok := got.(list)
		if !ok {
			break
		}
		if len(w) != len(g) {
			return fmt.Sprintf("%s has %d items instead of %d", place, len(g), len(w))
		}
		for i := range w {
			if d := differs(w[i], g[i], fmt.Sprintf("%s[%d]", place, i)); d != "" {
				return d
			}
		}
		return ""
	default:
		if want == got {
			return ""
		}
	}
	return fmt.Sprintf("%s is %.300s instead of %.300s", place, encode(nil, got), encode(nil, want))
}

func (o *object) keys() (keys []string) {
	for _, m := range o.members {
		keys = append(keys, m.key)
	}
	return keys
}

// encode appends a tree as JSON.
func encode(dst []byte, t tree) []byte {
	switch t := t.(type) {
	case *object:
		dst = append(dst, '{')
		for i, m := range t.members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(encode(dst, m.key), ':')
			dst = encode(dst, m.value)
		}
		return append(dst, '}')
	case list:
		dst = append(dst, '[')
		for i, item := range t {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = encode(dst, item)
		}
		return append(dst, ']')
	}
	text, _ := json.Marshal(t) //nolint:errchkjson // it came from JSON
	return append(dst, text...)
}
