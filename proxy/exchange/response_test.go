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
			resp := &Response{Reader: io.NopCloser(bytes.NewReader(body)), Length: int64(len(body))}
			if kept {
				resp.Kept = &fair.Common{}
			}
			n, err := resp.WriteBody(t.Context(), slowWriter{2 * time.Second}, &Request{}, fair.NewSlots(1))
			if errors.Is(err, fair.ErrSlowList) != kept || !kept && n != int64(len(body)) {
				t.Errorf("in memory: %t: %d bytes were written, %v", kept, n, err)
			}
		})
	}
}
