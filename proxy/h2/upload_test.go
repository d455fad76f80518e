package h2

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/net/http2"
)

// returned counts the bytes that an upload gives back.
type returned int64

// goOn implements uploader.
func (*returned) goOn() {}

// giveBack implements uploader.
func (r *returned) giveBack(n int64, _ bool) { *r += returned(n) }

// No reader gets a byte of a frame that makes a body longer than declared. A body that is shorter has
// no end.
func TestBodyOfAnotherLength(t *testing.T) {
	broken := http2.StreamError{StreamID: 1, Code: http2.ErrCodeProtocol}
	for _, c := range []struct {
		name     string
		frames   []string // the last one ends the stream
		unwanted int64
		read     string
	}{
		{"longer", []string{"abc", "de", ""}, 2, "abc"},
		{"longer at its end", []string{"abc", "de"}, 2, "abc"},
		{"shorter", []string{"abc"}, 0, "abc"},
	} {
		var given returned
		b := newUpload(1, 10, &given)
		b.Declared = 4
		var unwanted int64
		var err error
		for i, f := range c.frames {
			if err != nil {
				break
			}
			unwanted, err = b.Add([]byte(f), i == len(c.frames)-1, int64(len(f)))
		}
		if !errors.Is(err, broken) || unwanted != c.unwanted || b.Ended() {
			t.Errorf("%s: %v, %d bytes are unwanted, ended: %t", c.name, err, unwanted, b.Ended())
		}
		p := make([]byte, 10)
		if n, err := b.Read(p); string(p[:n]) != c.read || err != nil || given != returned(n) {
			t.Errorf("%s: read %q, %v, and gave back %d", c.name, p[:n], err, given)
		}
		b.Fail(broken)
		if n, err := b.Read(p); n != 0 || !errors.Is(err, broken) {
			t.Errorf("%s: then %d bytes, %v", c.name, n, err)
		}
	}
	b := newUpload(1, 10, new(returned))
	b.Declared = 4
	if _, err := b.Add([]byte("abcd"), true, 4); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(b); string(got) != "abcd" || err != nil {
		t.Errorf("the declared length: %q, %v", got, err)
	}
}
