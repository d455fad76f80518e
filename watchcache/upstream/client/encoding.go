package client

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"

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
	return [...]string{
		object.JSON:     MimeJSON,
		object.Protobuf: MimeProtobuf,
		object.Table:    MimeJSON + ";as=Table;g=meta.k8s.io;v=v1",
	}[e]
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

// readEnvelope reads the envelope of a protobuf message: a prefix and a runtime.Unknown, which
// names the type. It reuses the memory of into.
func readEnvelope(body []byte, into *runtime.Unknown) error {
	raw, ok := bytes.CutPrefix(body, ProtobufPrefix)
	if !ok {
		return object.Malformed("not protobuf: %.20q", body)
	}
	*into = runtime.Unknown{Raw: into.Raw[:0]}
	if err := into.Unmarshal(raw); err != nil {
		return object.Malformed("protobuf envelope: %w", err)
	}
	if into.ContentEncoding != "" {
		return object.Malformed("content encoding %q", into.ContentEncoding)
	}
	return nil
}
