package proxy

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// A client that ends between two chunks has not ended its body.
func TestBodyCutBetweenChunksIsNotComplete(t *testing.T) {
	for cut, want := range map[bool]error{false: nil, true: io.ErrUnexpectedEOF} {
		c := &conn{}
		c.eof.Store(cut)
		b := &body{from: strings.NewReader("hello"), cut: &c.eof, length: -1}
		if _, err := io.ReadAll(b); !errors.Is(err, want) || b.ended.Load() == cut {
			t.Errorf("connection ended: %t: %v, body ended: %t", cut, err, b.ended.Load())
		}
	}
}
