package object

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
)

// This annotation ends the initial state of a watch with sendInitialEvents (KEP-3157).
const (
	initialEventsEndKey    = "k8s.io/initial-events-end"
	initialEventsEndMember = `"` + initialEventsEndKey + `":"true"`
	initialEventsEnd       = `"annotations":{` + initialEventsEndMember + `}`
)

// Bookmark is a template made from one of upstream's bookmarks of a resource, with a variable
// resourceVersion. The template has to come from upstream, because a bookmark is the zero value of
// its kind. For example, a Pod's bookmark has a spec and a status.
type Bookmark struct {
	plain     rvTemplate
	annotated rvTemplate
	proto     *protoBookmark // set for protobuf only; the templates are then unused
	row       []byte         // set for Tables only; the templates are then unused
}

// rvTemplate is an object split at the digits of its resourceVersion.
type rvTemplate struct{ before, after []byte }

func (h rvTemplate) append(dst []byte, rv uint64) []byte {
	dst = append(dst, h.before...)
	dst = strconv.AppendUint(dst, rv, 10)
	return append(dst, h.after...)
}

// Append appends the bookmark's object at rv. If initialEnd is true, the object has the annotation
// that ends the initial events. The JSON form has kind and apiVersion; the protobuf form is the
// bare message.
func (b *Bookmark) Append(dst []byte, rv uint64, initialEnd bool) []byte {
	switch {
	case b.proto != nil:
		return b.proto.append(dst, rv, initialEnd)
	case initialEnd:
		return b.annotated.append(dst, rv)
	}
	return b.plain.append(dst, rv)
}

// IsInitialEventsEnd reports whether a bookmark has the annotation that ends the initial events.
func (r *Resource) IsInitialEventsEnd(object []byte) bool {
	at := ""
	switch r.Encoding {
	case Protobuf:
		return protoInitialEventsEnd(object)
	case Table:
		at = "rows.0.object."
	}
	return gjson.GetBytes(object, at+`metadata.annotations.k8s\.io/initial-events-end`).Str == "true"
}

// ParseBookmark reads one of upstream's bookmarks, with or without the annotation. It returns the
// bookmark as a template, and its resourceVersion.
func (r *Resource) ParseBookmark(object []byte) (*Bookmark, uint64, error) {
	switch r.Encoding {
	case Protobuf:
		return parseProtoBookmark(object)
	case Table:
		return r.parseTableBookmark(object)
	}
	object = bytes.TrimSpace(object)
	if !gjson.ValidBytes(object) {
		return nil, 0, fmt.Errorf("%w: bookmark is not JSON", ErrMalformed)
	}
	plain := bytes.Clone(object)
	if r.IsInitialEventsEnd(object) {
		plain = cutMember(object, []byte(initialEventsEnd))
		if r.IsInitialEventsEnd(plain) {
			plain = cutMember(object, []byte(initialEventsEndMember))
		}
	}
	shape, rv, err := templateOf(plain)
	if err != nil {
		return nil, 0, err
	}
	return &Bookmark{plain: shape, annotated: r.annotate(shape)}, rv, nil
}

// cutMember removes a member of a JSON object, and its comma.
func cutMember(object, member []byte) []byte {
	for _, m := range [][]byte{append([]byte{','}, member...), append(bytes.Clone(member), ','), member} {
		if before, after, ok := bytes.Cut(object, m); ok {
			return append(bytes.Clone(before), after...)
		}
	}
	return bytes.Clone(object)
}

// templateOf splits an object around the digits of metadata.resourceVersion.
func templateOf(object []byte) (rvTemplate, uint64, error) {
	v := gjson.Get(lend(object), "metadata.resourceVersion")
	rv, err := ParseResourceVersion(v.Str)
	if err != nil || v.Index == 0 || len(v.Raw) != len(v.Str)+2 {
		return rvTemplate{}, 0, fmt.Errorf("%w: bookmark has resourceVersion %s", ErrOpaqueResourceVersion, v.Raw)
	}
	return rvTemplate{object[:v.Index+1], object[v.Index+1+len(v.Str):]}, rv, nil
}

// annotate adds the annotation at the place where kube-apiserver writes it. In a custom resource,
// keys are sorted, so the annotations precede the resourceVersion. In built-in types, the
// annotations follow the resourceVersion. The annotations themselves are sorted. For example, a
// DaemonSet's bookmark has an annotation of its own.
func (r *Resource) annotate(h rvTemplate) rvTemplate {
	if before, ok := addAnnotation(h.before); ok {
		return rvTemplate{before, h.after}
	}
	if after, ok := addAnnotation(h.after); ok {
		return rvTemplate{h.before, after}
	}
	if r.SelfDescribing {
		key := []byte(`"resourceVersion":"`)
		at := len(h.before) - len(key)
		before := append(bytes.Clone(h.before[:at]), initialEventsEnd...)
		return rvTemplate{append(append(before, ','), key...), h.after}
	}
	after := append([]byte(`",`), initialEventsEnd...)
	return rvTemplate{h.before, append(after, h.after[1:]...)}
}

// addAnnotation adds the annotation to the existing annotations in part, if there are any.
func addAnnotation(part []byte) (with []byte, ok bool) {
	_, rest, ok := bytes.Cut(part, []byte(`"annotations":{`))
	if !ok {
		return nil, false
	}
	at, member := 0, initialEventsEndMember+","
	gjson.Parse("{" + lend(rest)).ForEach(func(key, value gjson.Result) bool {
		if key.Str < initialEventsEndKey {
			at, member = value.Index+len(value.Raw)-len("{"), ","+initialEventsEndMember
		}
		return true
	})
	return slices.Concat(part[:len(part)-len(rest)], rest[:at], []byte(member), rest[at:]), true
}
