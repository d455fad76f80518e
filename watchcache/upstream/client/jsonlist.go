package client

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// maxValue limits an item, and the list without its items, in bytes.
const maxValue = 64 << 20

var (
	errNotJSON = errors.New("not JSON")
	errLong    = object.Malformed("a list with a value of more than %d bytes", maxValue)
)

// readJSONItems reads a list in JSON and calls item with each element of its array, as the elements
// arrive. An element is valid until the next one. The result is the list with an empty array.
// Upstream writes the metadata of custom resources after the items, so callers check the list last.
func readJSONItems(body io.Reader, items string, item func([]byte)) (rest []byte, err error) {
	l := &jsonList{from: body, left: maxValue, rest: []byte("{")}
	l.decoder = jsontext.NewDecoder(l,
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	err = l.read(items, item)
	switch {
	case l.err != nil:
		err = l.err
	case err != nil:
		err = errNotJSON
	}
	return l.rest, err
}

// jsonList is a list that is being read, and the reader of its decoder. It limits the bytes of a
// value. It keeps the error of the connection, which the decoder does not tell from its own errors.
type jsonList struct {
	from    io.Reader
	decoder *jsontext.Decoder
	left    int   // of the bytes of the next value
	err     error // of the connection, or errLong
	rest    []byte
}

func (l *jsonList) Read(p []byte) (n int, err error) {
	if l.left == 0 {
		l.err = errLong
		return 0, l.err
	}
	n, err = l.from.Read(p[:min(len(p), l.left)])
	l.left -= n
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
	}
	return n, err
}

func (l *jsonList) value() ([]byte, error) {
	value, err := l.decoder.ReadValue()
	l.left = maxValue
	return value, err
}

// read ends with the first error: PeekKind returns no kind then, and the next value has the error.
func (l *jsonList) read(items string, item func([]byte)) error {
	if l.decoder.PeekKind() != jsontext.KindBeginObject {
		return errNotJSON
	}
	_, _ = l.decoder.ReadToken()
	for found := false; l.decoder.PeekKind() != jsontext.KindEndObject; {
		key, err := l.value()
		if err != nil {
			return err
		}
		first := !found && gjson.ParseBytes(key).Str == items
		found = found || first
		l.rest = append(append(l.rest, key...), ':')
		var value []byte
		if first && l.decoder.PeekKind() == jsontext.KindBeginArray {
			value = []byte("[]")
			err = l.elements(item)
		} else {
			value, err = l.value()
		}
		if l.rest = append(append(l.rest, value...), ','); len(l.rest) > maxValue {
			l.err = errLong
		}
		if err = errors.Join(err, l.err); err != nil {
			return err
		}
	}
	l.rest = append(bytes.TrimSuffix(l.rest, []byte(",")), '}')
	_, _ = l.decoder.ReadToken()
	if _, err := l.decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return errNotJSON // something follows
	}
	return nil
}

func (l *jsonList) elements(item func([]byte)) error {
	_, _ = l.decoder.ReadToken()
	for l.decoder.PeekKind() != jsontext.KindEndArray {
		value, err := l.value()
		if err != nil {
			return err
		}
		item(value)
	}
	_, err := l.decoder.ReadToken()
	return err
}
