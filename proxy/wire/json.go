package wire

import (
	"encoding/json"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mimeJSON is the Content-Type of all responses in JSON, including watches.
const mimeJSON = "application/json"

// inJSON has the methods that all forms in JSON share.
type inJSON struct{}

func (inJSON) ContentType() string { return mimeJSON }
func (inJSON) StreamType() string  { return mimeJSON }
func (inJSON) Separator() string   { return "," }

func (inJSON) AppendError(dst []byte, s *metav1.Status) []byte {
	return appendRawEvent(dst, "ERROR", must(json.Marshal(s)))
}

// jsonForm writes a resource in JSON.
type jsonForm struct {
	inJSON
	Kind
	typeMeta []byte // before the metadata of a single object
}

func newPlainJSON(k Kind) *jsonForm {
	j := &jsonForm{Kind: k}
	if !k.Sorted {
		j.typeMeta = []byte(`"kind":"` + k.Kind + `","apiVersion":"` + k.APIVersion + `",`)
	}
	return j
}

func (j *jsonForm) Verbatim() bool { return true }

func (j *jsonForm) AppendItem(dst []byte, o Object) ([]byte, error) {
	return append(dst, o.Bytes()...), nil
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
	return append(j.appendSingle(dst, o.Bytes()), '\n'), nil
}

// appendSingle writes a list item as a single object.
func (j *jsonForm) appendSingle(dst, item []byte) []byte {
	dst, rest := j.splitSingle(dst, item)
	return append(dst, rest...)
}

// splitSingle is appendSingle without a copy of the unchanged rest.
func (j *jsonForm) splitSingle(dst, item []byte) (head, rest []byte) {
	if j.Sorted {
		return dst, item
	}
	dst = append(dst, '{')
	return append(dst, j.typeMeta...), item[1:]
}

func (j *jsonForm) AppendEvent(dst []byte, eventType string, o Object) ([]byte, error) {
	head, body, tail, _ := j.SplitEvent(dst, eventType, o)
	return append(append(head, body...), tail...), nil
}

var eventTail = []byte("}\n")

func (j *jsonForm) SplitEvent(dst []byte, eventType string, o Object) (head, body, tail []byte, ok bool) {
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
