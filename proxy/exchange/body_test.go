package exchange

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
)

// A body whose client ends between two chunks is not complete.
func TestBodyCutBetweenChunksIsNotComplete(t *testing.T) {
	for cut, want := range map[bool]error{false: nil, true: io.ErrUnexpectedEOF} {
		var ended atomic.Bool
		ended.Store(cut)
		b := &Body{From: strings.NewReader("hello"), Cut: &ended, Length: -1}
		if _, err := io.ReadAll(b); !errors.Is(err, want) || b.Ended.Load() == cut {
			t.Errorf("connection ended: %t: %v, body ended: %t", cut, err, b.Ended.Load())
		}
	}
}
