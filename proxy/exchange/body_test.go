package exchange

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// A body that is longer than declared, with room for what is declared, can be read again and again.
func TestFillALongerBody(t *testing.T) {
	for _, length := range []int64{BodyAhead, BodyAhead + 9} {
		b := &Body{From: strings.NewReader(strings.Repeat("a", int(length)+1)), Length: length, Keep: true, Room: length}
		for range 2 {
			if !b.Fill() {
				t.Errorf("%d bytes and one more are taken for %d", length, length)
			}
		}
		if b.Whole() != nil {
			t.Errorf("%d bytes and one more are whole", length)
		}
	}
}

type untimed struct{}

func (untimed) ReadUntil(time.Time) {}

// Whole returns bodies that are short and complete. Read returns all of the others.
func TestWhole(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		sent   int
		ends   error
		length int64
		kept   bool
		whole  bool
	}{
		"short":                 {4, io.EOF, 4, true, true},
		"of unknown length":     {4, io.EOF, -1, true, true},
		"not to be kept":        {4, io.EOF, 4, false, false},
		"broken":                {4, broken, 5, true, false},
		"ended too early":       {4, io.EOF, 5, true, false},
		"long":                  {BodyAhead + 1, io.EOF, BodyAhead + 1, true, false},
		"long, of any length":   {BodyAhead + 1, io.EOF, -1, true, false},
		"broken, of any length": {4, broken, -1, true, false},
		"longer than declared":  {5, io.EOF, 4, true, false},
	} {
		for _, http2 := range []bool{false, true} {
			sent := strings.Repeat("a", test.sent)
			b := &Body{From: io.MultiReader(strings.NewReader(sent), iotest.ErrReader(test.ends)), Length: test.length, Keep: test.kept}
			if http2 {
				b.Shared, b.Client = true, untimed{}
				b.ReadAhead()
			}
			whole := b.Whole()
			rest, err := io.ReadAll(b)
			if (whole != nil) != test.whole || string(whole)+string(rest) != sent {
				t.Errorf("%s, HTTP/2 %t: %d bytes, then %d, of %d", name, http2, len(whole), len(rest), len(sent))
			}
			if errors.Is(test.ends, broken) && !errors.Is(err, broken) {
				t.Errorf("%s, HTTP/2 %t: error %v, want %v", name, http2, err, broken)
			}
		}
	}
	if whole := (*Body)(nil).Whole(); whole != nil {
		t.Errorf("no body: %q", whole)
	}
}
