package exchange

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// closes counts how often a body is closed, and its response released.
type closes struct {
	io.Reader
	closed, released int
	bytes            int64
}

func (c *closes) Close() error {
	c.closed++
	return nil
}

func (c *closes) Written(bytes int64) {
	c.released++
	c.bytes += bytes
}

// However often a response is closed, its body is closed once, and what its request holds is given back
// once.
func TestResponsesAreClosedOnce(t *testing.T) {
	var c closes
	resp := &Response{Body: &Reader{ReadCloser: &c}, Release: &c}
	resp.Close(7)
	resp.Close(9)
	resp.Abandon()
	if c.closed != 1 || c.released != 1 || c.bytes != 7 {
		t.Errorf("closed %d times, released %d times, with %d bytes", c.closed, c.released, c.bytes)
	}
}

type slowWriter struct{ each time.Duration }

// Write implements io.Writer.
func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.each)
	return len(p), nil
}

// A response that is in memory ends if its client reads too slowly. Another one does not, because what is
// unread stays upstream.
func TestSlowReaderOfAResponseInMemory(t *testing.T) {
	for _, kept := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			body := make([]byte, 3<<20)
			resp := &Response{Body: &Reader{ReadCloser: io.NopCloser(bytes.NewReader(body))}}
			if kept {
				resp.Kept = &fair.Common{}
			}
			n, err := resp.Copy(t.Context(), slowWriter{2 * time.Second}, &Request{}, fair.NewSlots(1))
			if errors.Is(err, fair.ErrSlowList) != kept || !kept && n != int64(len(body)) {
				t.Errorf("in memory: %t: %d bytes were written, %v", kept, n, err)
			}
		})
	}
}
