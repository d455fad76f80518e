package forward

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// lines is the body of a watch in JSON. A read ends after an event, and so does an HTTP/1.1 chunk.
// Kube-apiserver writes an event as one chunk, and some clients decode each chunk by itself
// (python-kubernetes before 28, Patroni): a chunk that ends within a character would end their
// watch. An event longer than the buffer is split, but not within a character. An aggregated API's
// server may not end events with a newline, so in its watches only characters stay whole.
type lines struct {
	io.ReadCloser
	events bool   // each event ends with a newline
	rest   []byte // the beginning of an event or a character
	err    error  // of the last read
}

// WholeLines lets the reads of a forwarded watch end after a character, or also after an event.
func WholeLines(header http.Header, body *exchange.Reader, events bool) {
	if hasLines(header) {
		body.ReadCloser = &lines{ReadCloser: body.ReadCloser, events: events}
	}
}

func hasLines(header http.Header) bool {
	return strings.HasPrefix(header.Get("Content-Type"), "application/json") &&
		header.Get("Content-Encoding") == ""
}

func (l *lines) Read(p []byte) (int, error) {
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	end := 0
	for end == 0 && n < len(p) && l.err == nil {
		var m int
		m, l.err = l.ReadCloser.Read(p[n:])
		i := bytes.LastIndexByte(p[n:n+m], '\n')
		switch n += m; {
		case !l.events:
			end = n - partOfCharacter(p[:n])
		case i >= 0:
			end = n - m + i + 1
		}
	}
	switch {
	case l.err != nil && len(l.rest) == 0:
		return n, l.err
	case end == 0:
		end = n - partOfCharacter(p[:n])
	}
	l.rest = append(bytes.Clone(p[end:n]), l.rest...)
	return end, nil
}

// partOfCharacter returns how many bytes at the end of p begin a character and do not complete it.
func partOfCharacter(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if last := p[len(p)-i:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return i
		}
	}
	return 0
}
