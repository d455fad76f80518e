package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// The media types of the two encodings.
const (
	MimeJSON     = "application/json"
	MimeProtobuf = "application/vnd.kubernetes.protobuf"
)

// AcceptOf returns the Accept header for an encoding.
func AcceptOf(e object.Encoding) string {
	return [...]string{object.JSON: MimeJSON, object.Protobuf: MimeProtobuf, object.Table: MimeJSON + ";as=Table;g=meta.k8s.io;v=v1"}[e]
}

// errOtherEncoding means that a response does not have the requested encoding. Such a response may
// come from a server other than upstream.
var errOtherEncoding = errors.New("answer in another encoding")

// CheckEncoding returns an error if a response does not have the requested encoding.
func CheckEncoding(resp *http.Response, e object.Encoding) error {
	want, _, _ := strings.Cut(AcceptOf(e), ";")
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, want) {
		return fmt.Errorf("%w: %q instead of %q", errOtherEncoding, got, want)
	}
	return nil
}

// ProtobufPrefix is the start of every response in protobuf.
var ProtobufPrefix = []byte("k8s\x00")

// readProtoList reads the body of a list (see [ReadProtoItems]).
func readProtoList(body io.Reader, item func([]byte)) (kind runtime.TypeMeta, meta metav1.ListMeta, err error) {
	prefix := make([]byte, len(ProtobufPrefix))
	n, err := io.ReadFull(body, prefix)
	short := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !short { // the connection broke
		return kind, meta, err
	}
	if short || !bytes.Equal(prefix, ProtobufPrefix) {
		return kind, meta, fmt.Errorf("%w: not protobuf: %.20q", object.ErrMalformed, prefix[:n])
	}
	return ReadProtoItems(body, item)
}

// readEnvelope reads the envelope of a protobuf message: a prefix and a runtime.Unknown, which
// names the type. It reuses the memory of into.
func readEnvelope(body []byte, into *runtime.Unknown) error {
	raw, ok := bytes.CutPrefix(body, ProtobufPrefix)
	if !ok {
		return fmt.Errorf("%w: not protobuf: %.20q", object.ErrMalformed, body)
	}
	*into = runtime.Unknown{Raw: into.Raw[:0]}
	if err := into.Unmarshal(raw); err != nil {
		return fmt.Errorf("%w: protobuf envelope: %w", object.ErrMalformed, err)
	}
	if into.ContentEncoding != "" {
		return fmt.Errorf("%w: content encoding %q", object.ErrMalformed, into.ContentEncoding)
	}
	return nil
}

// protoStream reads frames with a WatchEvent each.
type protoStream struct {
	*frameReader
	event    metav1.WatchEvent
	envelope runtime.Unknown
	want     runtime.TypeMeta // type of the events' objects
}

// NewProtoStream reads watch events in protobuf. buffer is the size of its read buffer in bytes.
func NewProtoStream(body io.Reader, r *object.Resource, buffer int) Stream {
	return &protoStream{frameReader: newFrameReader(body, buffer), want: runtime.TypeMeta{Kind: r.Kind, APIVersion: r.APIVersion()}}
}

// Next implements Stream.
func (s *protoStream) Next() (Event, error) {
	frame, err := s.frameReader.Next()
	if err != nil {
		return Event{}, err
	}
	s.event = metav1.WatchEvent{Object: runtime.RawExtension{Raw: kept(s.event.Object.Raw)}}
	s.envelope.Raw = kept(s.envelope.Raw)
	if err := s.event.Unmarshal(frame); err != nil {
		return Event{}, fmt.Errorf("%w: watch event: %w", object.ErrMalformed, err)
	}
	if err := readEnvelope(s.event.Object.Raw, &s.envelope); err != nil {
		return Event{}, err
	}
	e := Event{Kind: s.event.Type, Object: s.envelope.Raw}
	want := s.want
	if e.Kind == "ERROR" {
		want = runtime.TypeMeta{Kind: "Status", APIVersion: "v1"}
	}
	if s.envelope.TypeMeta != want {
		return Event{}, fmt.Errorf("%w: watch event with a %v instead of a %v", object.ErrMalformed, s.envelope.TypeMeta, want)
	}
	return e, nil
}

// kept returns a buffer for reuse, or nil if it has grown too large.
func kept(buf []byte) []byte {
	if cap(buf) > bufferKeep {
		return nil
	}
	return buf[:0]
}
