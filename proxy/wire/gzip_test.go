package wire

import (
	"bytes"
	"compress/gzip"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"testing"
)

// inflate reads exactly one gzip member, as the standard library does.
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
			n := 1 + r.IntN(len(rest))
			if r.IntN(2) == 0 {
				segments = append(segments, StoredSegment(rest[:n]))
			} else {
				segments = append(segments, NewSegment(context, rest[:n]))
			}
			rest = rest[n:]
		}
		pieces, length := Gzip(segments)
		if got := inflate(t, joined(t, pieces, length)); !bytes.Equal(got, plain) {
			t.Errorf("%d bytes came back as %d", len(plain), len(got))
		}
	})
}

func TestCombine(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 7, 8, 1000, 1 << 20} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		a := []byte("what comes before")
		if got, want := combine(crc32.ChecksumIEEE(a), NewSegment(nil, b)), crc32.ChecksumIEEE(append(a, b...)); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
	}
}

func TestGzipBody(t *testing.T) {
	plain := bytes.Repeat([]byte("abc"), 100_000)
	if got := inflate(t, GzipBody(plain)); !bytes.Equal(got, plain) {
		t.Error("differs")
	}
}
