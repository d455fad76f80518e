package object

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// protoTemplate is an object in protobuf, split around its metadata. The metadata is split at the
// resourceVersion and where annotations go.
type protoTemplate struct {
	before, after      []byte // of the object
	start, middle, end []byte // of the metadata
}

// protoTemplateOf relies on kube-apiserver, which writes fields in the order of their numbers.
func protoTemplateOf(object []byte) (t *protoTemplate, rv uint64, err error) {
	field, err := metadataOf(object)
	if err != nil {
		return nil, 0, err
	}
	meta, digits := field.bytes, []byte(nil)
	from, to, annotations := 0, 0, len(meta)
	err = eachField(meta, func(f protoField) bool {
		switch {
		case f.number == resourceVersionNumber && f.kind == protowire.BytesType:
			from, to, digits = f.start, f.end, f.bytes
		case f.number > annotationsNumber && f.start < annotations:
			annotations = f.start
		}
		return true
	})
	if err == nil {
		rv, err = ParseResourceVersion(string(digits))
	}
	annotations = max(annotations, to) // parsers also accept fields in another order
	return &protoTemplate{
		before: object[:field.start], after: object[field.end:],
		start: meta[:from], middle: meta[to:annotations], end: meta[annotations:],
	}, rv, err
}

var initialEventsEndField = func() []byte {
	entry := protowire.AppendTag(nil, entryKey, protowire.BytesType)
	entry = protowire.AppendString(entry, initialEventsEndKey)
	entry = protowire.AppendTag(entry, entryValue, protowire.BytesType)
	entry = protowire.AppendString(entry, "true")
	field := protowire.AppendTag(nil, annotationsNumber, protowire.BytesType)
	return protowire.AppendBytes(field, entry)
}()

func parseProtoBookmark(object []byte) (*Bookmark, uint64, error) {
	meta, err := metadataOf(object)
	if err != nil {
		return nil, 0, err
	}
	plain := appendMetadata(nil, bytes.Replace(meta.bytes, initialEventsEndField, nil, 1))
	object = slices.Concat(object[:meta.start], plain, object[meta.end:])
	if protoInitialEventsEnd(object) {
		return nil, 0, Malformed("bookmark with further annotations")
	}
	t, rv, err := protoTemplateOf(object)
	if err != nil {
		return nil, 0, fmt.Errorf("bookmark: %w", err)
	}
	return &Bookmark{proto: t}, rv, nil
}

func (t *protoTemplate) append(dst []byte, rv uint64, initialEnd bool) []byte {
	meta := bytes.Clone(t.start)
	meta = protowire.AppendTag(meta, resourceVersionNumber, protowire.BytesType)
	meta = protowire.AppendString(meta, strconv.FormatUint(rv, 10))
	meta = append(meta, t.middle...)
	if initialEnd {
		meta = append(meta, initialEventsEndField...)
	}
	meta = append(meta, t.end...)
	dst = append(dst, t.before...)
	dst = appendMetadata(dst, meta)
	return append(dst, t.after...)
}

func appendMetadata(dst, meta []byte) []byte {
	dst = protowire.AppendTag(dst, metadataNumber, protowire.BytesType)
	return protowire.AppendBytes(dst, meta)
}

func protoInitialEventsEnd(object []byte) (ends bool) {
	meta, err := metadataOf(object)
	if err != nil {
		return false
	}
	_ = eachField(meta.bytes, func(f protoField) bool { // a malformed message ends nothing
		if f.number == annotationsNumber && f.kind == protowire.BytesType {
			key, value, err := readEntry(f.bytes)
			ends = ends || err == nil && key == initialEventsEndKey && value == "true"
		}
		return true
	})
	return ends
}
