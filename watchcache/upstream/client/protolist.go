package client

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Field numbers from the API's definitions of runtime.Unknown and of lists.
const (
	envelopeType     = protowire.Number(1)
	envelopeRaw      = protowire.Number(2)
	envelopeEncoding = protowire.Number(3)
	listMetadata     = protowire.Number(1)
	listItems        = protowire.Number(2)
)

// ReadProtoList reads a list in protobuf and calls item with each item, as the items arrive. An
// item is valid until the next one.
func ReadProtoList(
	body io.Reader, item func([]byte),
) (kind runtime.TypeMeta, meta metav1.ListMeta, err error) {
	in := &protoReader{r: bufio.NewReaderSize(body, bufferSize)}
	prefix, err := in.bytes(len(ProtobufPrefix))
	if errors.Is(err, io.ErrUnexpectedEOF) || err == nil && !bytes.Equal(prefix, ProtobufPrefix) {
		err = object.Malformed("not protobuf: %.20q", prefix)
	}
	if err != nil { // the connection broke, unless the response is too short
		return kind, meta, err
	}
	for found := false; ; {
		number, size, err := in.field()
		switch {
		case errors.Is(err, io.EOF):
			return kind, meta, nil
		case err != nil:
		case number == envelopeEncoding && size > 0:
			err = object.Malformed("a content encoding")
		case number == envelopeRaw && found:
			err = object.Malformed("two lists")
		case number == envelopeRaw:
			found = true
			err = in.list(in.at+size, &meta, item)
		case number == envelopeType:
			err = in.message(size, &kind)
		default:
			_, err = in.bytes(size)
		}
		if err != nil {
			return kind, meta, notWhole(err)
		}
	}
}

func (p *protoReader) list(end int, meta *metav1.ListMeta, item func([]byte)) error {
	for p.at < end {
		number, size, err := p.field()
		if err != nil {
			return err
		}
		if number == listMetadata {
			err = p.message(size, meta)
		} else if _, err = p.bytes(size); err == nil && number == listItems {
			item(p.buf)
		}
		if err != nil {
			return err
		}
	}
	if p.at != end {
		return object.Malformed("a field beyond its list")
	}
	return nil
}

func (p *protoReader) message(size int, into interface{ Unmarshal([]byte) error }) error {
	value, err := p.bytes(size)
	if err != nil {
		return err
	}
	if err := into.Unmarshal(value); err != nil {
		return object.Malformed("metadata of a list: %w", err)
	}
	return nil
}

// notWhole turns an io.EOF in the middle of a message into io.ErrUnexpectedEOF.
func notWhole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// protoReader reads messages whose fields are all length-delimited.
type protoReader struct {
	r   *bufio.Reader
	at  int // bytes read so far
	buf []byte
}

func (p *protoReader) ReadByte() (byte, error) {
	p.at++
	return p.r.ReadByte()
}

// field reads a field's number and size. It returns io.EOF if there is no further field.
func (p *protoReader) field() (number protowire.Number, size int, err error) {
	tag, err := binary.ReadUvarint(p)
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	length, err := binary.ReadUvarint(p)
	switch {
	case err != nil:
		return 0, 0, notWhole(err)
	case kind != protowire.BytesType || length > maxList:
		return 0, 0, object.Malformed("field %d of type %d and %d bytes", number, kind, length)
	}
	return number, int(length), nil
}

const maxList, bufferSize = 1 << 30, 16 << 10

// bytes reads the value of a field. The value is valid until the next read.
func (p *protoReader) bytes(size int) (value []byte, err error) {
	if size > maxValue {
		return nil, object.Malformed("a field of %d bytes", size)
	}
	p.buf, err = readSized(p.r, p.buf[:0], size)
	p.at += size
	return p.buf, err
}

// readSized appends size bytes to a buffer. The buffer grows with the bytes that arrive, so an
// announced size alone uses no memory.
func readSized(r io.Reader, buf []byte, size int) ([]byte, error) {
	for size > 0 {
		at, part := len(buf), min(size, 1<<20)
		buf = slices.Grow(buf, part)[:at+part]
		if _, err := io.ReadFull(r, buf[at:]); err != nil {
			return buf[:0], notWhole(err)
		}
		size -= part
	}
	return buf, nil
}
