package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
)

// inflate reads exactly one gzip member with the standard library.
func inflate(t *testing.T, body []byte) []byte {
	t.Helper()
	rest := bytes.NewReader(body)
	z, err := gzip.NewReader(rest)
	if err != nil {
		t.Fatal(err)
	}
	z.Multistream(false)
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("after %d bytes: %v", len(plain), err)
	}
	if rest.Len() > 0 {
		t.Fatalf("%d bytes follow the member", rest.Len())
	}
	return plain
}

func joined(t *testing.T, pieces [][]byte, length int64) []byte {
	t.Helper()
	body := bytes.Join(pieces, nil)
	if int64(len(body)) != length {
		t.Fatalf("%d bytes, told %d", len(body), length)
	}
	return body
}

// However a body is divided into segments, stored or deflated, the result is one gzip member with
// the right checksum.
func FuzzGzip(f *testing.F) {
	f.Add([]byte(""), uint64(1))
	f.Add([]byte("hello, hello, hello"), uint64(2))
	f.Add(bytes.Repeat([]byte(`{"metadata":{"name":"web"}},`), 10_000), uint64(3))
	f.Fuzz(func(t *testing.T, plain []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		var segments []*Segment
		for rest := plain; len(rest) > 0; {
			before := plain[:len(plain)-len(rest)]
			context := before[r.IntN(len(before)+1):]
			n := r.IntN(len(rest) + 1) // a segment may be empty
			if r.IntN(2) == 0 {
				segments = append(segments, StoredSegment(rest[:n]))
			} else {
				segments = append(segments, NewSegment(context, rest[:n], r.IntN(2) == 0))
			}
			rest = rest[n:]
		}
		pieces, length := Gzip(segments)
		if got := inflate(t, joined(t, pieces, length)); !bytes.Equal(got, plain) {
			t.Errorf("%d bytes came back as %d", len(plain), len(got))
		}
	})
}

// A body for one request is no larger than kube-apiserver's, which uses Go's level 1.
func TestGzipBody(t *testing.T) {
	var plain []byte
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); len(plain) < 1<<20; i++ {
		plain = fmt.Appendf(plain, `{"metadata":{"name":"web-%05d","namespace":"team-%d","uid":"%016x","labels":{"app":"web","track":"stable"}},`+
			`"spec":{"nodeName":"worker-%02d","containers":[{"name":"web","image":"registry.example/web:%d"}]},"status":{"phase":"Running"}},`,
			i, r.IntN(20), r.Uint64(), r.IntN(50), r.IntN(9))
	}
	got := GzipBody(plain)
	if !bytes.Equal(inflate(t, got), plain) {
		t.Error("differs")
	}
	var upstream bytes.Buffer
	w, err := gzip.NewWriterLevel(&upstream, 1)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if len(got) > upstream.Len() {
		t.Errorf("%d bytes, upstream's has %d", len(got), upstream.Len())
	}
}
