package wire

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Form writes the answers about one resource in one way. Objects are the bytes
// that the cache keeps; nothing of them is decoded, unless the form says so.
type Form interface {
	// ContentType is that of a get or a list, StreamType that of a watch.
	ContentType() string
	StreamType() string
	// Kept tells that the items of a list are the kept ones as they are. If not,
	// AppendItem makes them.
	Kept() bool
	AppendItem(dst, object []byte) ([]byte, error)
	// AppendListHead and AppendListTail write a list up to its first item and from
	// after its last. Items is the length of what stands between them, in bytes.
	AppendListHead(dst []byte, m ListMeta, items int64) []byte
	AppendListTail(dst []byte, m ListMeta, items int64) []byte
	// Separator stands between items.
	Separator() string
	// AppendObject writes the body of a get.
	AppendObject(dst, object []byte) ([]byte, error)
	// AppendEvent writes a watch event, AppendBookmark one of type BOOKMARK, whose
	// object is as watchcache.Bookmark writes it, AppendError one of type ERROR.
	AppendEvent(dst []byte, eventType string, object []byte) ([]byte, error)
	// SplitEvent is AppendEvent without a copy of the object: the event is head, which
	// begins with dst, then body, a part of object, then tail. Ok is false if the form is
	// not made of the object's own bytes.
	SplitEvent(dst []byte, eventType string, object []byte) (head, body, tail []byte, ok bool)
	AppendBookmark(dst, object []byte) ([]byte, error)
	AppendError(dst []byte, s *metav1.Status) []byte
}

// Kind names the resource that a form writes.
type Kind struct {
	Kind, ListKind, APIVersion string
	// Sorted tells custom resources, whose keys are sorted and whose items
	// describe themselves.
	Sorted bool
}

// ListMeta is the metadata of a list.
type ListMeta struct {
	ResourceVersion uint64
	// Continue is the token of the next page, "" on the last.
	Continue string
	// Remaining is the number of items after this page; nil where it is unknown.
	Remaining *int64
}

const (
	metaGroup    = "meta.k8s.io"
	metaVersion  = "v1"
	partialKind  = "PartialObjectMetadata"
	partialLists = "PartialObjectMetadataList"
)

// NewForm returns the form of a choice. The cache that it writes from is kept in
// protobuf if kept says so.
func NewForm(c Choice, k Kind, kept Encoding) Form {
	switch {
	case c.Partial && c.Encoding == Protobuf && kept != Protobuf:
		return newPartialProtobuf(metadataFromJSON)
	case c.Partial && c.Encoding == Protobuf:
		return newPartialProtobuf(metadataField)
	case c.Partial && k.Sorted:
		return newPartialJSON(orderedMetadata)
	case c.Partial:
		return newPartialJSON(metadataMember)
	case c.Encoding == Protobuf:
		return newProtobuf(k)
	}
	return newPlainJSON(k)
}
