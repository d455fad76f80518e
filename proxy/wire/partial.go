package wire

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// ErrUnknownMetadata says that metadata cannot be converted without loss, so upstream must answer.
var ErrUnknownMetadata = errors.New("metadata with fields that are not known here")

// partialAPIVersion is the group and version of PartialObjectMetadata.
const partialAPIVersion = metaGroup + "/" + metaVersion

// metadataMember cuts the metadata out of an object's JSON. The metadata of a built-in object
// already has the final order.
func metadataMember(object []byte) ([]byte, error) {
	meta := gjson.GetBytes(object, "metadata")
	if !meta.IsObject() {
		return nil, fmt.Errorf("object without metadata: %.100s", object)
	}
	return []byte(meta.Raw), nil
}

// orderedMetadata returns the sorted metadata of a custom resource in the order of a Go type.
func orderedMetadata(object []byte) ([]byte, error) {
	meta, err := readMetadata(object)
	if err != nil {
		return nil, err
	}
	return json.Marshal(meta)
}

// readMetadata decodes an object's metadata. It fails if a field would be lost.
func readMetadata(object []byte) (meta metav1.ObjectMeta, err error) {
	raw, err := metadataMember(object)
	if err != nil {
		return meta, err
	}
	unknown, err := kjson.UnmarshalStrict(raw, &meta)
	if err == nil && len(unknown) > 0 {
		err = errors.Join(unknown...)
	}
	if err != nil {
		return meta, fmt.Errorf("%w: %w", ErrUnknownMetadata, err)
	}
	return meta, nil
}

// metadataFromJSON makes a PartialObjectMetadata message of a custom resource's JSON.
func metadataFromJSON(object []byte) ([]byte, error) {
	meta, err := readMetadata(object)
	if err != nil {
		return nil, err
	}
	partial := metav1.PartialObjectMetadata{ObjectMeta: meta}
	return partial.Marshal()
}

// metadataField cuts the metadata out of an object's message. The metadata with its tag is a
// PartialObjectMetadata message.
func metadataField(object []byte) ([]byte, error) {
	for at := 0; at < len(object); {
		_, _, size := protowire.ConsumeField(object[at:])
		if size < 0 {
			break
		}
		if object[at] == metadataTag {
			return object[at : at+size], nil
		}
		at += size
	}
	return nil, fmt.Errorf("message without metadata: %.40q", object)
}

type partialJSON struct {
	inJSON
	fields *projection.Projection
	sorted bool // the keys of objects are sorted
}

func (p *partialJSON) AppendItem(dst []byte, o Object) ([]byte, error) {
	if p.fields == nil {
		return p.appendPartial(dst, o.Bytes())
	}
	whole, err := p.appendPartial(nil, o.Bytes())
	if err != nil {
		return dst, err
	}
	return p.fields.Append(dst, whole)
}

func (p *partialJSON) appendPartial(dst, object []byte) ([]byte, error) {
	read := metadataMember
	if p.sorted {
		read = orderedMetadata
	}
	meta, err := read(object)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `{"kind":"`+partialKind+`","apiVersion":"`+partialAPIVersion+`",`...)
	dst = append(dst, `"metadata":`...)
	dst = append(dst, meta...)
	return append(dst, '}'), nil
}

func (p *partialJSON) AppendListHead(dst []byte, m ListMeta, items int64) []byte {
	dst = appendTypedListHead(dst, partialLists, partialAPIVersion, m)
	if items == 0 {
		return append(dst, "null"...)
	}
	return append(dst, '[')
}

func (p *partialJSON) AppendListTail(dst []byte, _ ListMeta, items int64) []byte {
	if items > 0 {
		dst = append(dst, ']')
	}
	return append(dst, "}\n"...)
}

func (p *partialJSON) AppendObject(dst []byte, o Object) ([]byte, error) {
	dst, err := p.AppendItem(dst, o)
	return append(dst, '\n'), err
}

func (p *partialJSON) AppendEvent(dst []byte, eventType string, o Object) ([]byte, error) {
	begin := len(dst)
	dst, err := p.AppendItem(appendEventHead(dst, eventType), o)
	if err != nil {
		return dst[:begin], err
	}
	return append(dst, eventTail...), nil
}

func (p *partialJSON) AppendBookmark(dst, object []byte) ([]byte, error) {
	partial, err := p.appendPartial(nil, object)
	if err != nil {
		return dst, err
	}
	return appendRawEvent(dst, "BOOKMARK", partial), nil
}
