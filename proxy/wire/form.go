package wire

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Form writes the responses for one resource in one encoding and shape.
type Form interface {
	// ContentType returns the Content-Type of a get or a list, StreamType that of a watch.
	ContentType() string
	StreamType() string
	// Verbatim reports whether a list contains the cached items unchanged. Otherwise AppendItem
	// converts them.
	Verbatim() bool
	AppendItem(dst []byte, o Object) ([]byte, error)
	// AppendListHead begins a list, AppendListTail ends it. items is the items' size in bytes.
	AppendListHead(dst []byte, m ListMeta, items int64) []byte
	AppendListTail(dst []byte, m ListMeta, items int64) []byte
	// Separator returns the text between two items.
	Separator() string
	// AppendObject writes the body of a get.
	AppendObject(dst []byte, o Object) ([]byte, error)
	// AppendEvent writes a watch event. AppendBookmark writes an event of type BOOKMARK for an
	// object of watchcache.Bookmark. AppendError writes an event of type ERROR.
	AppendEvent(dst []byte, eventType string, o Object) ([]byte, error)
	// SplitEvent is AppendEvent without a copy of the object. The event consists of head, body and
	// tail. head begins with dst, and body is a part of the object. ok is false if the form changes
	// the object's bytes.
	SplitEvent(dst []byte, eventType string, o Object) (head, body, tail []byte, ok bool)
	AppendBookmark(dst, object []byte) ([]byte, error)
	AppendError(dst []byte, s *metav1.Status) []byte
}

// Object is a cached object: its key, uid, resourceVersion and cached bytes. An object that was
// deleted or left a selection is shown at the resourceVersion of that change. Written returns the
// resourceVersion of its content.
type Object interface {
	Key() string
	UID() string
	ResourceVersion() uint64
	Written() uint64
	Bytes() []byte
}

// Kind names the resource that a form writes.
type Kind struct {
	Kind, ListKind, APIVersion string
	// Sorted is true for custom resources: their keys are sorted, and their items have kind and
	// apiVersion.
	Sorted bool
	// Protobuf is true if the cache keeps the objects in protobuf.
	Protobuf bool
}

// ListMeta is the metadata of a list.
type ListMeta struct {
	ResourceVersion uint64
	// Continue is the token of the next page, or "" on the last page.
	Continue string
	// Remaining is the number of items after this page; nil if unknown.
	Remaining *int64
}

const (
	metaGroup    = "meta.k8s.io"
	metaVersion  = "v1"
	partialKind  = "PartialObjectMetadata"
	partialLists = "PartialObjectMetadataList"
)

// NewForm returns the form of a choice.
func NewForm(c Choice, k Kind) Form {
	switch {
	case c.Partial && c.MediaType == Protobuf:
		partial := Kind{
			Kind:       partialKind,
			ListKind:   partialLists,
			APIVersion: partialAPIVersion,
		}
		p := newProtobuf(partial, c.Message)
		p.metadata, p.fromJSON = true, !k.Protobuf
		return p
	case c.Partial:
		return &partialJSON{fields: c.Fields, sorted: k.Sorted}
	case c.MediaType == Protobuf:
		return newProtobuf(k, c.Message)
	}
	return newPlainJSON(k, c.Fields)
}

const mimeYAML = "application/yaml"

// Status writes the body of an error.
func (c Choice) Status(s *metav1.Status) (body []byte, contentType string) {
	if c.MediaType == Protobuf {
		return statusEnvelope.append(nil, must(s.Marshal())), mimeProtobuf
	}
	body = append(must(json.Marshal(s)), '\n')
	if c.MediaType == YAML {
		// JSONToYAML refuses some characters that JSON has.
		if text, err := yaml.JSONToYAML(body); err == nil {
			return text, mimeYAML
		}
	}
	if c.Pretty {
		body = must(json.MarshalIndent(s, "", "  "))
	}
	return body, mimeJSON
}
