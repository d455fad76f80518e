package wire

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	mimeProtobuf       = "application/vnd.kubernetes.protobuf"
	mimeProtobufStream = mimeProtobuf + ";stream=watch"
	// protobufPrefix begins every message that stands alone.
	protobufPrefix = "k8s\x00"
)

// envelope is the runtime.Unknown that every message comes in, around the length
// and the bytes of the message itself.
type envelope struct{ head, tail []byte }

// newEnvelope lets the API's own type write the envelope of one byte and takes that
// out: so the numbers of its fields are not written here again.
func newEnvelope(apiVersion, kind string) envelope {
	sample := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: []byte{0xff}}
	written, err := sample.Marshal()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	head, tail, ok := bytes.Cut(written, []byte{1, 0xff}) // no tag and no name has a byte 0xff
	if !ok {
		panic("BUG: an envelope without its message")
	}
	return envelope{append([]byte(protobufPrefix), head...), tail}
}

// size is the length of a message of n bytes in its envelope.
func (e *envelope) size(n int) int {
	return len(e.head) + protowire.SizeBytes(n) + len(e.tail)
}

func (e *envelope) append(dst, message []byte) []byte {
	dst = append(dst, e.head...)
	dst = protowire.AppendBytes(dst, message)
	return append(dst, e.tail...)
}

var statusEnvelope = newEnvelope("v1", "Status")

// The tags of a WatchEvent, as the API's own type writes them.
var eventTypeTag, eventObjectTag, eventRawTag = func() (kind, object, raw byte) {
	sample := metav1.WatchEvent{Type: "T", Object: runtime.RawExtension{Raw: []byte{0xff}}}
	written, err := sample.Marshal()
	if err != nil || len(written) != 8 || written[2] != 'T' || written[7] != 0xff {
		panic("BUG: a WatchEvent is written in another way")
	}
	return written[0], written[3], written[5]
}()

// frameHead is the length that a watch event begins with, in bytes.
const frameHead = 4

// appendFrame writes a watch event: its length, and a WatchEvent around a message
// in its envelope.
func (e *envelope) appendFrame(dst []byte, eventType string, message []byte) []byte {
	dst = e.appendFrameHead(dst, eventType, message)
	dst = append(dst, message...)
	return append(dst, e.tail...)
}

// appendFrameHead is appendFrame up to the message.
func (e *envelope) appendFrameHead(dst []byte, eventType string, message []byte) []byte {
	begin := len(dst)
	dst = append(dst, make([]byte, frameHead)...)
	dst = append(dst, eventTypeTag)
	dst = protowire.AppendString(dst, eventType)
	object := e.size(len(message))
	dst = append(dst, eventObjectTag)
	dst = protowire.AppendVarint(dst, uint64(1+protowire.SizeBytes(object)))
	dst = append(dst, eventRawTag)
	dst = protowire.AppendVarint(dst, uint64(object))
	dst = append(dst, e.head...)
	dst = protowire.AppendVarint(dst, uint64(len(message)))
	binary.BigEndian.PutUint32(dst[begin:], uint32(len(dst)-begin-frameHead+len(message)+len(e.tail)))
	return dst
}

// protoForm is the form in which kube-apiserver writes one resource as protobuf.
type protoForm struct{ object, list envelope }

func newProtobuf(k Kind) *protoForm {
	return &protoForm{newEnvelope(k.APIVersion, k.Kind), newEnvelope(k.APIVersion, k.ListKind)}
}

func (p *protoForm) ContentType() string { return mimeProtobuf }
func (p *protoForm) StreamType() string  { return mimeProtobufStream }
func (p *protoForm) Kept() bool          { return true }
func (p *protoForm) Separator() string   { return "" }

func (p *protoForm) AppendItem(dst, object []byte) ([]byte, error) {
	return appendProtoItem(dst, object), nil
}

func (p *protoForm) AppendListHead(dst []byte, m ListMeta, items int64) []byte {
	return p.list.appendListHead(dst, m, items)
}

func (p *protoForm) AppendListTail(dst []byte, _ ListMeta, _ int64) []byte {
	return append(dst, p.list.tail...)
}

func (p *protoForm) AppendObject(dst, object []byte) ([]byte, error) {
	return p.object.append(dst, object), nil
}

func (p *protoForm) AppendEvent(dst []byte, eventType string, object []byte) ([]byte, error) {
	return p.object.appendFrame(dst, eventType, object), nil
}

func (p *protoForm) SplitEvent(dst []byte, eventType string, object []byte) (head, body, tail []byte, ok bool) {
	return p.object.appendFrameHead(dst, eventType, object), object, p.object.tail, true
}

func (p *protoForm) AppendBookmark(dst, object []byte) ([]byte, error) {
	return p.object.appendFrame(dst, "BOOKMARK", object), nil
}

func (p *protoForm) AppendError(dst []byte, s *metav1.Status) []byte {
	return appendProtoError(dst, s)
}

func appendProtoError(dst []byte, s *metav1.Status) []byte {
	return statusEnvelope.appendFrame(dst, "ERROR", statusMessage(s))
}

func statusMessage(s *metav1.Status) []byte {
	message, err := s.Marshal()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return message
}

// appendListHead writes a list up to its first item. PartialObjectMetadataList
// writes its metadata as every list does.
func (e *envelope) appendListHead(dst []byte, m ListMeta, items int64) []byte {
	list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion: strconv.FormatUint(m.ResourceVersion, 10), Continue: m.Continue, RemainingItemCount: m.Remaining,
	}}
	meta, err := list.Marshal()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	dst = append(dst, e.head...)
	dst = protowire.AppendVarint(dst, uint64(int64(len(meta))+items))
	return append(dst, meta...)
}

// itemTag is the tag of a list's item.
var itemTag = func() byte {
	list := metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{{}}}
	empty := metav1.PartialObjectMetadataList{}
	written, err := list.Marshal()
	if err != nil || len(written) <= empty.Size() {
		panic("BUG: a list is written in another way")
	}
	return written[empty.Size()]
}()

func appendProtoItem(dst, object []byte) []byte {
	return protowire.AppendBytes(append(dst, itemTag), object)
}
