package client

import (
	"bufio"
	"errors"
	"io"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// readJSONItems reads a list in JSON and calls item with each element of its array, as the elements
// arrive. An element is valid until the next one. The result is the list with an empty array.
// Upstream writes the metadata of custom resources after the items, so callers check the list last.
func readJSONItems(body io.Reader, items string, item func([]byte)) (rest []byte, err error) {
	in := &jsonReader{r: bufio.NewReaderSize(body, bufferSize)}
	found := false
	member := func() error {
		key, err := in.value()
		if err != nil {
			return err
		}
		if key[0] != '"' {
			return errNotJSON
		}
		first := !found && gjson.ParseBytes(key).Str == items
		found = found || first
		rest = append(append(rest, key...), ':')
		if err := in.expect(':'); err != nil {
			return err
		}
		if c, err := in.peek(); first && err == nil && c == '[' {
			rest = append(rest, "[],"...)
			return in.elements(item)
		}
		value, err := in.value()
		if rest = append(append(rest, value...), ','); len(rest) > maxValue {
			err = errLong
		}
		return err
	}
	rest = append(rest, '{')
	if err = in.expect('{'); err == nil {
		err = in.sequence('}', member)
	}
	if err == nil {
		if _, err = in.peek(); err == nil {
			err = errNotJSON // something follows
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if errors.Is(err, io.EOF) {
		err = errNotJSON
	}
	if last := len(rest) - 1; rest[last] == ',' {
		rest = rest[:last]
	}
	return append(rest, '}'), err
}

const (
	// bufferSize is the read buffer of a list, in bytes.
	bufferSize = 16 << 10
	// maxValue is the maximum size of an item, and of the list without its items, in bytes.
	maxValue = 64 << 20
)

var (
	errNotJSON = errors.New("not JSON")
	errLong    = object.Malformed("a list with a value of more than %d bytes", maxValue)
)

// jsonReader reads the parts of a JSON document as they arrive. It accepts what gjson accepts. At
// the end of the input, it returns io.EOF.
type jsonReader struct {
	r   *bufio.Reader
	buf []byte // the latest value
}

func (j *jsonReader) peek() (byte, error) {
	for {
		next, err := j.r.Peek(1)
		if err != nil {
			return 0, err
		}
		switch next[0] {
		case ' ', '\t', '\n', '\r':
			_, _ = j.r.Discard(1)
		default:
			return next[0], nil
		}
	}
}

func (j *jsonReader) expect(c byte) error {
	next, err := j.peek()
	if err != nil {
		return err
	}
	_, _ = j.r.Discard(1)
	if next != c {
		return errNotJSON
	}
	return nil
}

func (j *jsonReader) sequence(closing byte, element func() error) error {
	c, err := j.peek()
	for more := false; err == nil && (more || c != closing); {
		if err = element(); err != nil {
			return err
		}
		c, err = j.peek()
		if more = c == ','; more {
			err = j.expect(',')
		} else if err == nil && c != closing {
			err = errNotJSON
		}
	}
	if err != nil {
		return err
	}
	return j.expect(closing)
}

func (j *jsonReader) elements(item func([]byte)) error {
	_, _ = j.r.Discard(1)
	return j.sequence(']', func() error {
		value, err := j.value()
		if err == nil {
			item(value)
		}
		return err
	})
}

// value reads a value. It is valid until the next call.
func (j *jsonReader) value() ([]byte, error) {
	_, err := j.peek()
	j.buf = j.buf[:0]
	var s span
	for err == nil {
		part, _ := j.r.Peek(j.r.Buffered())
		n, whole := s.end(part)
		j.buf = append(j.buf, part[:n]...)
		_, _ = j.r.Discard(n)
		switch {
		case len(j.buf) > maxValue:
			return nil, errLong
		case whole && !gjson.ValidBytes(j.buf):
			return nil, errNotJSON
		case whole:
			return j.buf, nil
		}
		_, err = j.r.Peek(1)
	}
	return nil, err
}

// span finds the end of a JSON value. It does not check the value.
type span struct {
	depth           int
	quoted, escaped bool
}

// end returns how many bytes of part belong to the value, and whether the value ends there.
func (s *span) end(part []byte) (n int, whole bool) {
	for i, c := range part {
		switch {
		case s.escaped:
			s.escaped = false
		case s.quoted:
			s.escaped, s.quoted = c == '\\', c != '"'
			if !s.quoted && s.depth == 0 {
				return i + 1, true
			}
		case c == '"':
			s.quoted = true
		case c == '{', c == '[':
			s.depth++
		case s.depth > 1 && (c == '}' || c == ']'):
			s.depth--
		case s.depth == 1 && (c == '}' || c == ']'):
			return i + 1, true
		case s.depth == 0 && (c == '}' || c == ']' || c == ',' || c == ':' || c <= ' '):
			return i, true // a number, true, false or null
		}
	}
	return len(part), false
}
