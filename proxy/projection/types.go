package projection

import (
	"encoding/json"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// types are the Go types of the API by resource. They lack alpha versions, whose field numbers may
// get another meaning.
var types = sync.OnceValue(func() map[schema.GroupVersionResource]reflect.Type {
	all := map[schema.GroupVersionResource]reflect.Type{}
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		_, object := t.FieldByName("ObjectMeta")
		if object && !strings.Contains(gvk.Version, "alpha") {
			resource, _ := meta.UnsafeGuessKindToResource(gvk)
			all[resource] = t
		}
	}
	return all
})

// Message returns the projection of a resource's messages. It returns nil if they are not cut:
// client-go does not know the resource, its version is an alpha, or a path does not lead to a field
// that the Go type and its messages have.
func (p *Projection) Message(resource schema.GroupVersionResource) *Message {
	t, ok := types()[resource]
	if !ok {
		return nil
	}
	return p.message(t, p.paths.members)
}

// Metadata is Message for PartialObjectMetadata.
func (p *Projection) Metadata() *Message {
	members := maps.Clone(p.paths.members)
	maps.DeleteFunc(members, func(name string, _ *node) bool { return name != "metadata" })
	return p.message(reflect.TypeFor[metav1.PartialObjectMetadata](), members)
}

func (p *Projection) message(t reflect.Type, members map[string]*node) *Message {
	if m, known := p.messages.Load(t); known {
		return m.(*Message)
	}
	members = maps.Clone(members)
	delete(members, "apiVersion") // not in the message, but around it
	delete(members, "kind")
	m, ok := structMessage(t, &node{keep: p.paths.keep, members: members})
	if !ok {
		m = nil
	}
	first, _ := p.messages.LoadOrStore(t, m) // requests compare the pointers
	return first.(*Message)
}

// newMessage returns what stays of a value. It decides like enter, which cuts JSON.
func newMessage(t reflect.Type, n *node) (m *Message, ok bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n.members == nil && n.items == nil:
	case opaque(t):
		return nil, false
	case t.Kind() == reflect.Struct && n.members != nil:
		return structMessage(t, n)
	case t.Kind() == reflect.Map && n.members != nil:
		return mapMessage(t, n)
	case t.Kind() == reflect.Slice && n.items != nil && t.Elem().Kind() != reflect.Uint8:
		return newMessage(t.Elem(), n.items)
	}
	return &Message{keep: n.keep}, true
}

// opaque reports whether protobuf and JSON write different values: times, quantities, and lists
// that are messages of their own.
func opaque(t reflect.Type) bool {
	pointer := reflect.PointerTo(t)
	if pointer.Implements(reflect.TypeFor[json.Marshaler]()) {
		return true
	}
	type message interface{ Marshal() ([]byte, error) }
	return t.Kind() != reflect.Struct && pointer.Implements(reflect.TypeFor[message]())
}

// structMessage is newMessage for a struct. JSON has the members of an embedded struct among the
// others, and protobuf has them in a field.
func structMessage(t reflect.Type, n *node) (m *Message, ok bool) {
	m = &Message{keep: n.keep, fields: map[protowire.Number]*Message{}}
	left := maps.Clone(n.members)
	var embedded *reflect.StructField
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of, named := left[name]
		switch {
		case name == "" && numberOf(f) != 0:
			embedded = &f
		case named:
			if m.fields[numberOf(f)], ok = newMessage(f.Type, of); !ok {
				return nil, false
			}
			delete(left, name)
		}
	}
	switch {
	case len(left) == 0:
		return m, true
	case embedded == nil:
		return nil, false
	}
	rest := &node{keep: n.keep, members: left}
	m.fields[numberOf(*embedded)], ok = newMessage(embedded.Type, rest)
	return m, ok
}

// mapMessage is newMessage for a map. The keys of all maps of the API are strings.
func mapMessage(t reflect.Type, n *node) (m *Message, ok bool) {
	m = &Message{keep: n.keep, keys: map[string]*Message{}}
	for key, of := range n.members {
		value, ok := newMessage(t.Elem(), of)
		if !ok {
			return nil, false
		}
		if !value.whole() {
			value = &Message{keep: true, fields: map[protowire.Number]*Message{entryValue: value}}
		}
		m.keys[key] = value
	}
	return m, true
}

// numberOf reads a tag such as `protobuf:"bytes,10,opt,name=nodeName"`; without one, it returns 0.
func numberOf(f reflect.StructField) protowire.Number {
	_, rest, _ := strings.Cut(f.Tag.Get("protobuf"), ",")
	text, _, _ := strings.Cut(rest, ",")
	n, _ := strconv.ParseInt(text, 10, 32)
	return protowire.Number(n)
}
