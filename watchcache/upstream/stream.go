package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// maxEvent bounds one watch event, in bytes: etcd holds objects of 1.5 MiB by
// default, JSON may write them larger, and nothing legitimate comes near this.
const maxEvent = 64 << 20

// stream reads watch events.
type stream interface {
	// next waits for an event. It returns io.EOF at a clean end.
	next() (event, error)
	// buffered tells whether next would return without waiting.
	buffered() bool
}

// streamBuffer is how much of a stream is read at once, in bytes.
const streamBuffer = 64 << 10

func newStream(body io.Reader, r *object.Resource) stream {
	if r.Encoding == object.Protobuf {
		return newProtoStream(body, r, streamBuffer)
	}
	return newJSONStream(body)
}

// jsonStream reads watch events in JSON: one document a line.
type jsonStream struct {
	r    *bufio.Reader
	long []byte // a line longer than the reader's buffer
}

func newJSONStream(body io.Reader) *jsonStream {
	return &jsonStream{r: bufio.NewReaderSize(body, streamBuffer)}
}

// event is a watch event, valid until the next read.
type event struct {
	kind   string
	object []byte
}

// next implements stream.
func (s *jsonStream) next() (event, error) {
	for {
		line, err := s.line()
		if err != nil {
			return event{}, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return parseEvent(line)
		}
	}
}

// buffered implements stream.
func (s *jsonStream) buffered() bool {
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
			return nil, fmt.Errorf("%w: watch event of more than %d bytes", object.ErrMalformed, maxEvent)
		}
	}
}

func parseEvent(line []byte) (event, error) {
	var e event
	// The object is validated by whoever reads it.
	gjson.Parse(unsafe.String(unsafe.SliceData(line), len(line))).ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "type":
			e.kind = v.Str
		case "object":
			e.object = line[v.Index : v.Index+len(v.Raw)]
		}
		return true
	})
	if e.kind == "" || len(e.object) == 0 {
		return event{}, fmt.Errorf("%w: watch event without type or object", object.ErrMalformed)
	}
	return e, nil
}
