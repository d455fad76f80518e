package conformance

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxFrame limits a watch event, in bytes.
const maxFrame = 64 << 20

// readFrame reads a watch event in protobuf, including its length. It returns io.EOF at a clean
// end.
func readFrame(r io.Reader) ([]byte, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(frame)
	if n > maxFrame {
		return nil, fmt.Errorf("%w: a frame of %d bytes", ErrNoEvent, n)
	}
	frame = append(frame, make([]byte, n)...)
	if _, err := io.ReadFull(r, frame[4:]); err != nil {
		return nil, fmt.Errorf("cut frame: %w", err)
	}
	return frame, nil
}

// ParseProtoEvent parses a frame.
func ParseProtoEvent(frame []byte) (Event, error) {
	e := Event{Line: frame}
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame[4:]); err != nil {
		return e, fmt.Errorf("%w: %w", ErrNoEvent, err)
	}
	envelope, err := OpenEnvelope(event.Object.Raw)
	if err != nil {
		return e, fmt.Errorf("%w: %w", ErrNoEvent, err)
	}
	if e.Type = event.Type; e.Type == "ERROR" {
		return e, nil
	}
	var object metav1.PartialObjectMetadata
	if err := object.Unmarshal(envelope.Raw); err != nil {
		return e, fmt.Errorf("%w: %w", ErrNoEvent, err)
	}
	if e.RV, err = strconv.ParseUint(object.ResourceVersion, 10, 64); err != nil {
		return e, fmt.Errorf("%w: resourceVersion: %w", ErrNoEvent, err)
	}
	if e.Type == "BOOKMARK" {
		e.InitialEnd = object.Annotations["k8s.io/initial-events-end"] == "true"
		return e, nil
	}
	if e.Key = object.Name; object.Namespace != "" {
		e.Key = object.Namespace + "/" + e.Key
	}
	return e, nil
}

// OpenEnvelope checks the prefix of a message and decodes its envelope.
func OpenEnvelope(body []byte) (runtime.Unknown, error) {
	var envelope runtime.Unknown
	raw, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return envelope, fmt.Errorf("not protobuf: %.40q", body)
	}
	return envelope, envelope.Unmarshal(raw)
}

// SettledFrame returns a bookmark in protobuf without its resourceVersion.
func SettledFrame(frame []byte) []byte {
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame[4:]); err != nil {
		return frame
	}
	envelope, err := OpenEnvelope(event.Object.Raw)
	if err != nil {
		return frame
	}
	var object metav1.PartialObjectMetadata
	if err := object.Unmarshal(envelope.Raw); err != nil {
		return frame
	}
	object.ResourceVersion = "RV"
	meta, err := object.Marshal()
	if err != nil {
		return frame
	}
	rest := envelope.Raw
	if number, kind, n := protowire.ConsumeTag(rest); n > 0 && number == 1 {
		if length := protowire.ConsumeFieldValue(number, kind, rest[n:]); length > 0 {
			rest = rest[n+length:]
		}
	}
	return fmt.Appendf(nil, "%s %v %q %q", event.Type, envelope.TypeMeta, meta, rest)
}
