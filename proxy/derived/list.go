package derived

import (
	"bytes"
	"io"

	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// List is a list that is written straight from the cache. It copies no item. It shares its pieces
// with other lists.
type List struct {
	Head, Tail []byte
	Spans      []tree.Span // items as the cache keeps them; Pieces has items in other forms
	Pieces     [][]byte
	Shares     []*Piece // the owners of Pieces; this reference lets other lists find them
	Separator  string
	Length     int64
}

// Bytes returns the whole body.
func (b *List) Bytes() []byte {
	var whole bytes.Buffer
	whole.Grow(int(b.Length))
	_, _ = b.WriteTo(&whole) // to memory
	return whole.Bytes()
}

// WriteTo implements io.WriterTo.
func (b *List) WriteTo(w io.Writer) (n int64, err error) {
	write := func(p []byte) {
		if err == nil && len(p) > 0 {
			var m int
			m, err = w.Write(p)
			n += int64(m)
		}
	}
	write(b.Head)
	separator := []byte(b.Separator)
	first := true
	for _, span := range b.Spans {
		for _, o := range span.Objects() {
			if !first {
				write(separator)
			}
			first = false
			write(o.Item())
		}
		if err != nil {
			return n, err
		}
	}
	for _, p := range b.Pieces {
		write(p)
	}
	write(b.Tail)
	return n, err
}
