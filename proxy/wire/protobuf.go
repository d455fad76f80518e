package wire

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

const (
	mimeProtobuf       = "application/vnd.kubernetes.protobuf"
	mimeProtobufStream = mimeProtobuf + ";stream=watch"
	// protobufPrefix begins every standalone message.
	protobufPrefix = "k8s\x00"
)

// envelope is the runtime.Unknown around every message.
type envelope struct{ head, tail []byte }

// newEnvelope lets the API's own type write an envelope around one byte, and splits it there.
func newEnvelope(apiVersion, kind string) envelope {
	sample := runtime.Unknown{
		TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind},
		Raw:      []byte{0xff},
	}
	written := must(sample.Marshal())
	head, tail, ok := bytes.Cut(written, []byte{1, 0xff}) // tags and names have no byte 0xff
	if !ok {
		panic("BUG: an envelope without its message")
	}
	return envelope{append([]byte(protobufPrefix), head...), tail}
}

func (e *envelope) size(n int) int {
	return len(e.head) + protowire.SizeBytes(n) + len(e.tail)
}

func (e *envelope) append(dst, message []byte) []byte {
	dst = append(dst, e.head...)
	dst = protowire.AppendBytes(dst, message)
	return append(dst, e.tail...)
}

var statusEnvelope = newEnvelope("v1", "Status")

// The tags of fields, by their numbers in apimachinery's generated.proto.
const (
	stringOrMessage = byte(protowire.BytesType)
	eventTypeTag    = 1<<3 | stringOrMessage // of a WatchEvent
	eventObjectTag  = 2<<3 | stringOrMessage
	eventRawTag     = 1<<3 | stringOrMessage // of that object
	metadataTag     = 1<<3 | stringOrMessage // of every object and list
	itemTag         = 2<<3 | stringOrMessage // of every list
)

// frameHead is the size of a frame's length, in bytes.
const frameHead = 4

// appendFrame writes a watch event: its length, then a WatchEvent around an envelope.
func (e *envelope) appendFrame(dst []byte, eventType string, message []byte) []byte {
	dst = e.appendFrameHead(dst, eventType, message)
	dst = append(dst, message...)
	return append(dst, e.tail...)
}

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
	rest := len(dst) - begin - frameHead + len(message) + len(e.tail)
	binary.BigEndian.PutUint32(dst[begin:], uint32(rest))
	return dst
}

type protoForm struct {
	object, list envelope
	cut          *projection.Message // nil for all fields
	metadata     bool                // only PartialObjectMetadata
	fromJSON     bool                // of custom resources
}

func newProtobuf(k Kind, cut *projection.Message) *protoForm {
	return &protoForm{
		object: newEnvelope(k.APIVersion, k.Kind),
		list:   newEnvelope(k.APIVersion, k.ListKind),
		cut:    cut,
	}
}

func (p *protoForm) ContentType() string { return mimeProtobuf }
func (p *protoForm) StreamType() string  { return mimeProtobufStream }
func (p *protoForm) Verbatim() bool      { return !p.metadata && p.cut == nil }
func (p *protoForm) Separator() string   { return "" }

func (p *protoForm) message(o Object) ([]byte, error) {
	message, err := p.partial(o.Bytes())
	if err != nil || p.cut == nil {
		return message, err
	}
	return p.cut.Append(make([]byte, 0, len(message)), message)
}

// partial returns an object's PartialObjectMetadata, or the object in a form of whole objects.
func (p *protoForm) partial(object []byte) ([]byte, error) {
	switch {
	case !p.metadata:
		return object, nil
	case p.fromJSON:
		return metadataFromJSON(object)
	}
	return metadataField(object)
}

func (p *protoForm) AppendItem(dst []byte, o Object) ([]byte, error) {
	message, err := p.message(o)
	if err != nil {
		return dst, err
	}
	return protowire.AppendBytes(append(dst, itemTag), message), nil
}

func (p *protoForm) AppendListHead(dst []byte, m ListMeta, items int64) []byte {
	return p.list.appendListHead(dst, m, items)
}

func (p *protoForm) AppendListTail(dst []byte, _ ListMeta, _ int64) []byte {
	return append(dst, p.list.tail...)
}

func (p *protoForm) AppendObject(dst []byte, o Object) ([]byte, error) {
	message, err := p.message(o)
	if err != nil {
		return dst, err
	}
	return p.object.append(dst, message), nil
}

func (p *protoForm) AppendEvent(dst []byte, eventType string, o Object) ([]byte, error) {
	message, err := p.message(o)
	if err != nil {
		return dst, err
	}
	return p.object.appendFrame(dst, eventType, message), nil
}

func (p *protoForm) SplitEvent(
	dst []byte, eventType string, o Object,
) (head, body, tail []byte, ok bool) {
	if !p.Verbatim() {
		return dst, nil, nil, false
	}
	object := o.Bytes()
	return p.object.appendFrameHead(dst, eventType, object), object, p.object.tail, true
}

func (p *protoForm) AppendBookmark(dst, object []byte) (_ []byte, err error) {
	if object, err = p.partial(object); err != nil {
		return dst, err
	}
	return p.object.appendFrame(dst, "BOOKMARK", object), nil
}

func (p *protoForm) AppendError(dst []byte, s *metav1.Status) []byte {
	return statusEnvelope.appendFrame(dst, "ERROR", must(s.Marshal()))
}

// appendListHead begins a list. The metadata of every list is encoded as in
// PartialObjectMetadataList.
func (e *envelope) appendListHead(dst []byte, m ListMeta, items int64) []byte {
	list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion:    strconv.FormatUint(m.ResourceVersion, 10),
		Continue:           m.Continue,
		RemainingItemCount: m.Remaining,
	}}
	meta := must(list.Marshal())
	dst = append(dst, e.head...)
	dst = protowire.AppendVarint(dst, uint64(int64(len(meta))+items))
	return append(dst, meta...)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return v
}
