package derived

import (
	"bytes"
	"io"
	"slices"

	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// List is a list that is written straight from the cache, without a copy of an item.
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

// ListItems are the items of a list, as spans of the cache's pages.
type ListItems struct {
	Spans     []tree.Span
	Count     int
	Separator string
	bytes     int64 // bytes of the cached items, without separators
}

// Add adds a span. It divides a span of large objects, because each span takes one turn.
func (l *ListItems) Add(s tree.Span) {
	const most = 1 << 20
	l.Spans = slices.AppendSeq(l.Spans, s.Parts(most))
	l.Count += s.Hi - s.Lo
	l.bytes += s.Bytes()
}

// Size returns the number of bytes of the cached items, with separators.
func (l *ListItems) Size() int64 {
	return l.bytes + int64(max(l.Count-1, 0)*len(l.Separator))
}
