package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// However upstream's bytes arrive, each read ends after an event, or after a character if the event
// is longer than the buffer. No byte and no error is lost.
func FuzzLines(f *testing.F) {
	f.Add("{\"a\":\"ü界😀\"}\n{}\n{", 3, 16)
	f.Add("ü界😀ü界😀ü界😀\n", 1, 5)
	f.Add("\xff\xfe\xf0\x9f\n\x80", 2, 4)
	f.Fuzz(func(t *testing.T, sent string, piece, size int) {
		events := piece%2 == 0
		piece, size = 1+piece&0xff, utf8.UTFMax+size&0xff
		broken := errors.New("broken")
		from := io.MultiReader(iotest.DataErrReader(&pieces{[]byte(sent), piece}), iotest.ErrReader(broken))
		body := &exchange.Reader{ReadCloser: io.NopCloser(from)}
		WholeLines(http.Header{"Content-Type": {"application/json"}}, body, events)
		var got []byte
		p := make([]byte, size)
		for {
			n, err := body.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				if !errors.Is(err, broken) || string(got) != sent {
					t.Fatalf("%q, %v, want %q", got, err, sent)
				}
				return
			}
			if n == 0 {
				t.Fatal("an empty read")
			}
			line := got[bytes.LastIndexByte(got, '\n')+1:]
			switch {
			case len(line) == 0:
			case events && n+utf8.UTFMax <= size:
				t.Fatalf("a read of %d bytes into a buffer of %d ends within an event: %q", n, size, p[:n])
			case utf8.ValidString(sent) && !utf8.Valid(got):
				t.Fatalf("a read ends within a character: %q", p[:n])
			}
		}
	})
}

// pieces returns at most a number of bytes at a time.
type pieces struct {
	rest []byte
	most int
}

// Read implements io.Reader.
func (r *pieces) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.most)], r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// An event without a newline is not held back, if the server may write such events.
func TestEventsWithoutNewline(t *testing.T) {
	from, write := io.Pipe()
	body := &exchange.Reader{ReadCloser: from}
	WholeLines(http.Header{"Content-Type": {"application/json"}}, body, false)
	go func() { _, _ = io.WriteString(write, "{}") }()
	p := make([]byte, 16)
	if n, err := body.Read(p); err != nil || string(p[:n]) != "{}" {
		t.Errorf("%q, %v", p[:n], err)
	}
}

// Other bodies stay as they are.
func TestOtherBodiesThanLines(t *testing.T) {
	for name, header := range map[string]http.Header{
		"protobuf": {"Content-Type": {"application/vnd.kubernetes.protobuf;stream=watch"}},
		"gzip":     {"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}},
		"text":     {"Content-Type": {"text/plain"}},
	} {
		body := io.NopCloser(strings.NewReader("a"))
		got := &exchange.Reader{ReadCloser: body}
		if WholeLines(header, got, true); got.ReadCloser != body {
			t.Errorf("%s: the body is read by lines", name)
		}
	}
}
