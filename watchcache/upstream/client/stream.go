package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// maxEvent is the maximum size of a watch event, in bytes. By default, etcd's objects have at most
// 1.5 MiB. In JSON they are larger, but far below this limit.
const maxEvent = 64 << 20

// Stream reads watch events.
type Stream interface {
	// Next waits for an event. It returns io.EOF if the stream ends cleanly.
	Next() (Event, error)
	// Buffered reports whether Next would return without waiting.
	Buffered() bool
}

const streamBuffer = 64 << 10

// NewStream reads watch events in the encoding of the resource.
func NewStream(body io.Reader, r *object.Resource) Stream {
	if r.Encoding == object.Protobuf {
		return NewProtoStream(body, r, streamBuffer)
	}
	return NewJSONStream(body)
}

type jsonStream struct {
	r    *bufio.Reader
	long []byte // for lines longer than the reader's buffer
}

// NewJSONStream reads watch events in JSON: one document per line.
func NewJSONStream(body io.Reader) Stream {
	return &jsonStream{r: bufio.NewReaderSize(body, streamBuffer)}
}

// Event is a watch event. It is valid until the next call of Next.
type Event struct {
	Kind   string
	Object []byte
}

// Next implements Stream.
func (s *jsonStream) Next() (Event, error) {
	for {
		line, err := s.line()
		if err != nil {
			return Event{}, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return parseEvent(line)
		}
	}
}

// Buffered implements Stream.
func (s *jsonStream) Buffered() bool {
	b, _ := s.r.Peek(s.r.Buffered())
	return bytes.IndexByte(b, '\n') >= 0
}

func (s *jsonStream) line() ([]byte, error) {
	s.long = s.long[:0]
	for {
		part, err := s.r.ReadSlice('\n')
		if err == nil && len(s.long) == 0 {
			return part, nil
		}
		s.long = append(s.long, part...)
		switch {
		case err == nil:
			return s.long, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			if errors.Is(err, io.EOF) && len(s.long) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		case len(s.long) > maxEvent:
			return nil, object.Malformed("watch event of more than %d bytes", maxEvent)
		}
	}
}

func parseEvent(line []byte) (Event, error) {
	var e Event
	// The caller validates the object.
	text := unsafe.String(unsafe.SliceData(line), len(line))
	gjson.Parse(text).ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "type":
			e.Kind = v.Str
		case "object":
			e.Object = line[v.Index : v.Index+len(v.Raw)]
		}
		return true
	})
	if e.Kind == "" || len(e.Object) == 0 {
		return Event{}, object.Malformed("watch event without type or object")
	}
	return e, nil
}
