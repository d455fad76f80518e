package exchange

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

type countingWriter struct {
	bytes.Buffer
	writes int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	return w.Buffer.Write(p)
}

// The chunks contain all frames. The buffer of a piece is reused. A larger buffer is not, so the pool
// holds no memory for large events. A flush of nothing writes nothing.
func TestChunksReadBackWhatWasWritten(t *testing.T) {
	var w countingWriter
	out := &ChunkWriter{To: &w}
	out.Pending()
	if err := out.Flush(); err != nil || w.writes != 0 {
		t.Errorf("%d writes, %v: an empty chunk would end the body", w.writes, err)
	}
	var want strings.Builder
	for _, size := range []int{1, 15, 16, 4096, PieceSize, 4*PieceSize + 100, 1} {
		frame := strings.Repeat("x", size)
		want.WriteString(frame)
		buf := out.Pending()
		pooled := out.pooled
		*buf = append(*buf, frame...)
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		if out.Buf != nil {
			t.Error("an idle stream holds a buffer")
		}
		if kept := cap(*pooled); kept > chunkKeep || size <= PieceSize && kept < size {
			t.Errorf("of a frame of %d bytes, a buffer of %d is reused", size, kept)
		}
	}
	if want := 4 + 2 + 5 + 1; w.writes != want { // a piece does not include its chunk's head
		t.Errorf("%d writes, want %d: one a flush, or a piece", w.writes, want)
	}
	if err := out.End(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(httputil.NewChunkedReader(&w))
	if err != nil || string(got) != want.String() {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, want.Len())
	}
}

type sizes []int64

func (s *sizes) Large(size int64) { *s = append(*s, size) }

// The writer of a large frame says so, until the frame is written. A frame that fits into a piece is
// collected.
func TestLargeFrames(t *testing.T) {
	var w countingWriter
	var told sizes
	out := &ChunkWriter{To: &w, Unchunked: true, Guard: &told}
	var want int
	for _, size := range []int{PieceSize - chunkHeader, 10, PieceSize + 1, 10} {
		want += size
		if err := out.Add(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Flush(); err != nil || w.Len() != want || w.writes != 5 {
		t.Errorf("%d bytes of %d in %d writes, %v", w.Len(), want, w.writes, err)
	}
	if fmt.Sprint(told) != fmt.Sprint([]int64{PieceSize + 1, 0}) {
		t.Errorf("told %d", told)
	}
}
