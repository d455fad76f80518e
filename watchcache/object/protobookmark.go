package object

import (
	"bytes"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

type protoBookmark struct {
	before, after []byte
	meta          protoTemplate
}

// protoTemplate is an object's metadata, split at the resourceVersion and where annotations go.
type protoTemplate struct{ before, middle, after []byte }

func (h protoTemplate) metadata(rv uint64, annotations []byte) []byte {
	dst := bytes.Clone(h.before)
	dst = protowire.AppendTag(dst, resourceVersionNumber, protowire.BytesType)
	dst = protowire.AppendString(dst, strconv.FormatUint(rv, 10))
	dst = append(dst, h.middle...)
	dst = append(dst, annotations...)
	return append(dst, h.after...)
}

// protoTemplateOf relies on kube-apiserver, which writes fields in the order of their numbers.
func protoTemplateOf(meta []byte) (h protoTemplate, rv uint64, err error) {
	var digits []byte
	from, to := 0, 0
	annotations := len(meta)
	err = eachField(meta, func(f protoField) bool {
		switch {
		case f.number == resourceVersionNumber && f.kind == protowire.BytesType:
			from, to, digits = f.start, f.end, f.bytes
		case f.number > annotationsNumber && f.start < annotations:
			annotations = f.start
		}
		return true
	})
	if err != nil {
		return h, 0, err
	}
	if rv, err = ParseResourceVersion(string(digits)); err != nil {
		return h, 0, err
	}
	annotations = max(annotations, to) // parsers also accept fields in another order
	return protoTemplate{meta[:from], meta[to:annotations], meta[annotations:]}, rv, nil
}

var initialEventsEndField = func() []byte {
	entry := protowire.AppendTag(nil, entryKey, protowire.BytesType)
	entry = protowire.AppendString(entry, initialEventsEndKey)
	entry = protowire.AppendTag(entry, entryValue, protowire.BytesType)
	entry = protowire.AppendString(entry, "true")
	return protowire.AppendBytes(protowire.AppendTag(nil, annotationsNumber, protowire.BytesType), entry)
}()

func parseProtoBookmark(object []byte) (*Bookmark, uint64, error) {
	object = bytes.Clone(object)
	meta, err := metadataOf(object)
	if err != nil {
		return nil, 0, err
	}
	plain := bytes.Replace(meta.bytes, initialEventsEndField, nil, 1)
	if protoInitialEventsEnd(appendMetadata(nil, plain)) {
		return nil, 0, fmt.Errorf("%w: bookmark with further annotations", ErrMalformed)
	}
	shape, rv, err := protoTemplateOf(plain)
	if err != nil {
		return nil, 0, fmt.Errorf("bookmark: %w", err)
	}
	return &Bookmark{proto: &protoBookmark{object[:meta.start], object[meta.end:], shape}}, rv, nil
}

func (b *protoBookmark) append(dst []byte, rv uint64, initialEnd bool) []byte {
	var annotations []byte
	if initialEnd {
		annotations = initialEventsEndField
	}
	dst = append(dst, b.before...)
	dst = appendMetadata(dst, b.meta.metadata(rv, annotations))
	return append(dst, b.after...)
}

func protoInitialEventsEnd(object []byte) (ends bool) {
	meta, err := metadataOf(object)
	if err != nil {
		return false
	}
	_ = eachField(meta.bytes, func(f protoField) bool { // a malformed message does not end the initial events
		if f.number == annotationsNumber && f.kind == protowire.BytesType {
			key, value, err := readEntry(f.bytes)
			ends = ends || err == nil && key == initialEventsEndKey && value == "true"
		}
		return true
	})
	return ends
}
