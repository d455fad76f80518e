package wire

import (
	"encoding/json"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// mimeJSON is the Content-Type of all responses in JSON, including watches.
const mimeJSON = "application/json"

// inJSON has the methods that all forms in JSON share.
type inJSON struct{}

func (inJSON) ContentType() string { return mimeJSON }
func (inJSON) StreamType() string  { return mimeJSON }
func (inJSON) Separator() string   { return "," }
func (inJSON) Verbatim() bool      { return false }

func (inJSON) SplitEvent(dst []byte, _ string, _ Object) (head, body, tail []byte, ok bool) {
	return dst, nil, nil, false
}

func (inJSON) AppendError(dst []byte, s *metav1.Status) []byte {
	return appendRawEvent(dst, "ERROR", must(json.Marshal(s)))
}

type jsonForm struct {
	inJSON
	Kind
	typeMeta []byte // before the metadata of a single object
	fields   *projection.Projection
}

func newPlainJSON(k Kind, fields *projection.Projection) *jsonForm {
	j := &jsonForm{Kind: k, fields: fields}
	if !k.Sorted {
		j.typeMeta = []byte(`"kind":"` + k.Kind + `","apiVersion":"` + k.APIVersion + `",`)
	}
	return j
}

func (j *jsonForm) Verbatim() bool { return j.fields == nil }

func (j *jsonForm) AppendItem(dst []byte, o Object) ([]byte, error) {
	return j.fields.Append(dst, o.Bytes())
}

func (j *jsonForm) item(o Object) ([]byte, error) {
	if j.fields == nil {
		return o.Bytes(), nil
	}
	return j.fields.Append(nil, o.Bytes())
}

func (j *jsonForm) AppendListHead(dst []byte, m ListMeta, _ int64) []byte {
	if j.Sorted {
		dst = append(dst, `{"apiVersion":"`...)
		dst = append(dst, j.APIVersion...)
		return append(dst, `","items":[`...)
	}
	return append(appendTypedListHead(dst, j.ListKind, j.APIVersion, m), '[')
}

// appendTypedListHead begins a list of a Go type, up to the value of its items.
func appendTypedListHead(dst []byte, kind, apiVersion string, m ListMeta) []byte {
	return append(appendTypedHead(dst, kind, apiVersion, m), `,"items":`...)
}

// appendTypedHead begins a list of a Go type, up to its metadata.
func appendTypedHead(dst []byte, kind, apiVersion string, m ListMeta) []byte {
	dst = append(dst, `{"kind":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","apiVersion":"`...)
	dst = append(dst, apiVersion...)
	dst = append(dst, `","metadata":{"resourceVersion":"`...)
	dst = strconv.AppendUint(dst, m.ResourceVersion, 10)
	dst = append(dst, '"')
	if m.Continue != "" {
		dst = append(dst, `,"continue":"`...)
		dst = append(dst, m.Continue...)
		dst = append(dst, '"')
	}
	if m.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *m.Remaining, 10)
	}
	return append(dst, '}')
}

func (j *jsonForm) AppendListTail(dst []byte, m ListMeta, _ int64) []byte {
	if !j.Sorted {
		return append(dst, "]}\n"...)
	}
	dst = append(dst, `],"kind":"`...)
	dst = append(dst, j.ListKind...)
	dst = append(dst, `","metadata":{"continue":"`...)
	dst = append(dst, m.Continue...)
	dst = append(dst, '"')
	if m.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *m.Remaining, 10)
	}
	dst = append(dst, `,"resourceVersion":"`...)
	dst = strconv.AppendUint(dst, m.ResourceVersion, 10)
	return append(dst, "\"}}\n"...)
}

func (j *jsonForm) AppendObject(dst []byte, o Object) ([]byte, error) {
	item, err := j.item(o)
	if err != nil {
		return dst, err
	}
	dst, rest := j.splitSingle(dst, item)
	return append(append(dst, rest...), '\n'), nil
}

// splitSingle writes a list item as a single object, without a copy of the unchanged rest.
func (j *jsonForm) splitSingle(dst, item []byte) (head, rest []byte) {
	if j.Sorted {
		return dst, item
	}
	dst = append(dst, '{')
	return append(dst, j.typeMeta...), item[1:]
}

func (j *jsonForm) AppendEvent(dst []byte, eventType string, o Object) ([]byte, error) {
	item, err := j.item(o)
	if err != nil {
		return dst, err
	}
	dst, rest := j.splitSingle(appendEventHead(dst, eventType), item)
	return append(append(dst, rest...), eventTail...), nil
}

var eventTail = []byte("}\n")

func (j *jsonForm) SplitEvent(
	dst []byte, eventType string, o Object,
) (head, body, tail []byte, ok bool) {
	if j.fields != nil {
		return dst, nil, nil, false
	}
	head, body = j.splitSingle(appendEventHead(dst, eventType), o.Bytes())
	return head, body, eventTail, true
}

func (j *jsonForm) AppendBookmark(dst, object []byte) ([]byte, error) {
	return appendRawEvent(dst, "BOOKMARK", object), nil
}

// appendRawEvent writes a watch event whose object is complete.
func appendRawEvent(dst []byte, eventType string, object []byte) []byte {
	dst = appendEventHead(dst, eventType)
	dst = append(dst, object...)
	return append(dst, eventTail...)
}

func appendEventHead(dst []byte, eventType string) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, eventType...)
	return append(dst, `","object":`...)
}
