package client

import (
	"bufio"
	"encoding/binary"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	frameHead = 4
	// bufferKeep is the maximum size of a buffer that is reused for the next event.
	bufferKeep = 1 << 20
)

// protoStream reads frames: a four-byte big-endian length, and a WatchEvent of that many bytes.
type protoStream struct {
	r        *bufio.Reader
	frame    []byte
	event    metav1.WatchEvent
	envelope runtime.Unknown
	want     runtime.TypeMeta // type of the events' objects
}

// NewProtoStream reads watch events in protobuf. buffer is the size of its read buffer in bytes.
func NewProtoStream(body io.Reader, r *object.Resource, buffer int) Stream {
	want := runtime.TypeMeta{Kind: r.Kind, APIVersion: r.APIVersion()}
	return &protoStream{r: bufio.NewReaderSize(body, buffer), want: want}
}

// Next implements Stream.
func (s *protoStream) Next() (Event, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return Event{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxEvent {
		return Event{}, object.Malformed("watch event of %d bytes", n)
	}
	var err error
	if s.frame, err = readSized(s.r, kept(s.frame), int(n)); err != nil {
		return Event{}, err
	}
	s.event = metav1.WatchEvent{Object: runtime.RawExtension{Raw: kept(s.event.Object.Raw)}}
	s.envelope.Raw = kept(s.envelope.Raw)
	if err := s.event.Unmarshal(s.frame); err != nil {
		return Event{}, object.Malformed("watch event: %w", err)
	}
	if err := readEnvelope(s.event.Object.Raw, &s.envelope); err != nil {
		return Event{}, err
	}
	want, is := s.want, s.envelope.TypeMeta
	if s.event.Type == "ERROR" {
		want = runtime.TypeMeta{Kind: "Status", APIVersion: "v1"}
	}
	if is != want {
		err = object.Malformed("watch event with a %v instead of a %v", is, want)
	}
	return Event{Kind: s.event.Type, Object: s.envelope.Raw}, err
}

// kept returns a buffer for reuse, or nil if it has grown too large.
func kept(buf []byte) []byte {
	if cap(buf) > bufferKeep {
		return nil
	}
	return buf[:0]
}

// Buffered implements Stream.
func (s *protoStream) Buffered() bool {
	head, err := s.r.Peek(min(frameHead, s.r.Buffered()))
	if err != nil || len(head) < frameHead {
		return false
	}
	return s.r.Buffered()-frameHead >= int(min(binary.BigEndian.Uint32(head), maxEvent))
}
