package object

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	proto     *protoTemplate // set for protobuf only; the templates are then unused
	row       []byte         // set for Tables only; the templates then write its object
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
	at += `metadata.annotations.k8s\.io/initial-events-end`
	return gjson.GetBytes(object, at).Str == "true"
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
	return parseJSONBookmark(object, r.SelfDescribing)
}

// parseJSONBookmark accepts JSON with white space, escapes, and any order of keys, because not all
// aggregated APIs use Go's encoder. sorted means that upstream sorts keys. It decides where the
// annotation is added.
func parseJSONBookmark(object []byte, sorted bool) (*Bookmark, uint64, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, object); err != nil {
		return nil, 0, Malformed("bookmark is not JSON: %w", err)
	}
	plain := compact.Bytes()
	annotated := plain
	m, err := marksOf(plain)
	switch {
	case err != nil:
		return nil, 0, err
	case !m.end.key.Exists():
		annotated = m.annotate(plain, sorted)
	case len(m.annotations.value.Map()) == 1:
		plain = m.annotations.cut(plain)
	default:
		plain = m.end.cut(plain)
	}
	b := &Bookmark{}
	if b.plain, _, err = templateOf(plain, false); err != nil {
		return nil, 0, err
	}
	var rv uint64
	b.annotated, rv, err = templateOf(annotated, true)
	return b, rv, err
}

// templateOf checks that the object has the annotation exactly if ends is true.
func templateOf(object []byte, ends bool) (rvTemplate, uint64, error) {
	m, err := marksOf(object)
	if err == nil && m.end.key.Exists() != ends {
		err = Malformed("bookmark whose annotations are not understood: %.200s", object)
	}
	if err != nil {
		return rvTemplate{}, 0, err
	}
	v := m.version.value
	rv, err := ParseResourceVersion(v.Str)
	if err != nil || len(v.Raw) != len(v.Str)+2 {
		return rvTemplate{}, 0, fmt.Errorf("%w: bookmark at %s", ErrOpaqueResourceVersion, v.Raw)
	}
	return rvTemplate{object[:v.Index+1], object[v.Index+1+len(v.Str):]}, rv, nil
}

// marks are the members of a bookmark that vary. Members that do not exist are zero.
type marks struct{ metadata, version, annotations, end member }

// marksOf finds the marks in JSON without white space. Each of them may occur once only.
func marksOf(object []byte) (m marks, err error) {
	whole := gjson.Result{}
	if gjson.ValidBytes(object) {
		whole = gjson.Parse(lend(object))
	}
	for _, find := range []struct {
		name     string
		in, into *member
	}{
		{"metadata", &member{value: whole}, &m.metadata},
		{"resourceVersion", &m.metadata, &m.version},
		{"annotations", &m.metadata, &m.annotations},
		{initialEventsEndKey, &m.annotations, &m.end},
	} {
		times := 0
		if find.in.value.IsObject() {
			find.in.value.ForEach(func(key, value gjson.Result) bool {
				if key.Str == find.name {
					*find.into = member{key, value}
					times++
				}
				return true
			})
		}
		if times > 1 {
			return m, Malformed("bookmark with %q more than once", find.name)
		}
	}
	a, end := m.annotations.value, m.end.value
	if !m.metadata.value.IsObject() || end.Exists() && end.Str != "true" ||
		a.Exists() && !a.IsObject() && a.Type != gjson.Null {
		return m, Malformed("bookmark that is not understood: %.200s", object)
	}
	return m, nil
}

// annotate adds the annotation where kube-apiserver writes it: first where keys are sorted, and
// last in built-in types, because a bookmark has no later members. The annotations themselves are
// sorted. For example, a DaemonSet's bookmark has an annotation of its own.
func (m *marks) annotate(object []byte, sorted bool) []byte {
	meta, a := m.metadata.value, m.annotations.value
	switch {
	case a.Type == gjson.Null && a.Exists():
		return splice(object, a.Index, len(a.Raw), "{"+initialEventsEndMember+"}")
	case a.Exists():
		at, text := a.Index+1, initialEventsEndMember+","
		a.ForEach(func(key, value gjson.Result) bool {
			if key.Str < initialEventsEndKey {
				at, text = value.Index+len(value.Raw), ","+initialEventsEndMember
			}
			return true
		})
		if len(a.Raw) == len("{}") {
			text = initialEventsEndMember
		}
		return splice(object, at, 0, text)
	case sorted:
		return splice(object, meta.Index+1, 0, initialEventsEnd+",")
	}
	return splice(object, meta.Index+len(meta.Raw)-1, 0, ","+initialEventsEnd)
}

type member struct{ key, value gjson.Result }

func (m member) cut(object []byte) []byte {
	from, to := m.key.Index, m.value.Index+len(m.value.Raw)
	switch {
	case object[to] == ',':
		to++
	case object[from-1] == ',':
		from--
	}
	return splice(object, from, to-from, "")
}

func splice(text []byte, at, n int, by string) []byte {
	return append(append(bytes.Clone(text[:at]), by...), text[at+n:]...)
}
