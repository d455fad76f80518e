package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// A list is compressed in pieces that are made once and put together at each
// request: a gzip header, deflate blocks that end at a byte and refer to little
// before them, and a trailer with the combined checksum. So the whole is one member,
// as any gzip reader wants it.
//
// A segment of few and small objects would be larger than kube-apiserver makes it,
// which sees the whole list. So a segment may refer to the end of the one before: it
// belongs to that as its context then, and an update makes two of them anew, not one.

const (
	// GzipThreshold is the length above which kube-apiserver compresses a body.
	GzipThreshold = 128 << 10
	// gzipHeader: no name, no time, deflated, fastest, of an unknown system, as Go
	// writes it.
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
	// storedMax bounds what one block holds uncompressed; storedHead is what the
	// block costs.
	storedMax  = 1<<16 - 1
	storedHead = 5
	trailerLen = 8
	// deflateLevel with ContextMax makes lists of any objects smaller than
	// kube-apiserver makes them: of small ones by 11 %, and levels from 1 to 6 make
	// some larger.
	deflateLevel = 7
	// ContextMax is how much of what stands before a segment it may refer to, in
	// bytes. With 32 KiB it took longer and came out no smaller.
	ContextMax = 8 << 10
)

// Segment is a compressed piece of a body.
type Segment struct {
	deflated []byte
	crc      uint32
	shift    uint32 // x to the power of the plain length in bits: see combine
	plain    int64
}

// Len is the length of the compressed bytes.
func (s *Segment) Len() int { return len(s.deflated) }

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, deflateLevel)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return w
}}

// NewSegment compresses a piece of a body. It may only stand behind one that ends
// with the context, which may be empty.
func NewSegment(context, plain []byte) *Segment {
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	var b bytes.Buffer
	w.ResetDict(&b, context[max(0, len(context)-ContextMax):])
	if _, err := w.Write(plain); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	if err := w.Flush(); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	w.ResetDict(nil, nil)
	return newSegment(bytes.Clone(b.Bytes()), plain)
}

// StoredSegment is a short piece as it is: to compress it would cost more than it
// is worth.
func StoredSegment(plain []byte) *Segment {
	if len(plain) > storedMax {
		return NewSegment(nil, plain)
	}
	block := make([]byte, storedHead, storedHead+len(plain)) // not the last one, stored
	binary.LittleEndian.PutUint16(block[1:], uint16(len(plain)))
	binary.LittleEndian.PutUint16(block[3:], ^uint16(len(plain)))
	return newSegment(append(block, plain...), plain)
}

func newSegment(deflated, plain []byte) *Segment {
	n := int64(len(plain))
	return &Segment{deflated, crc32.ChecksumIEEE(plain), powerOfX(8 * uint64(n)), n}
}

// Gzip puts segments together. The result is written piece by piece: nothing is
// copied.
func Gzip(segments []*Segment) (pieces [][]byte, length int64) {
	pieces = append(make([][]byte, 0, len(segments)+2), []byte(gzipHeader))
	length = int64(len(gzipHeader))
	var crc uint32
	var plain int64
	for _, s := range segments {
		pieces = append(pieces, s.deflated)
		length += int64(len(s.deflated))
		crc = combine(crc, s)
		plain += s.plain
	}
	trailer := make([]byte, 0, len(lastBlock)+trailerLen)
	trailer = append(trailer, lastBlock...)
	trailer = binary.LittleEndian.AppendUint32(trailer, crc)
	trailer = binary.LittleEndian.AppendUint32(trailer, uint32(plain)) // modulo 2^32, says the format
	return append(pieces, trailer), length + int64(len(trailer))
}

// lastBlock is an empty one that says it is the last.
const lastBlock = "\x03\x00"

// A CRC-32 is the remainder of a polynomial over GF(2), its bits in reverse order.
// Behind n more bits it is multiplied by x to the power of n; what follows is added.

// combine is the checksum of what has the checksum crc, followed by a segment.
func combine(crc uint32, s *Segment) uint32 { return multiply(crc, s.shift) ^ s.crc }

const one = uint32(1) << 31

// multiply is the product of two polynomials modulo that of the CRC.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		b = timesX(b)
	}
	return product
}

func timesX(p uint32) uint32 {
	if p&1 != 0 {
		return p>>1 ^ crc32.IEEE
	}
	return p >> 1
}

// squares are x to the power of 2, 4, 8 and so on.
var squares = func() (table [64]uint32) {
	p := timesX(one)
	for i := range table {
		table[i] = p
		p = multiply(p, p)
	}
	return table
}()

// powerOfX is x to the power of n.
func powerOfX(n uint64) uint32 {
	p := one
	for i := 0; n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			p = multiply(squares[i], p)
		}
	}
	return p
}

var gzips = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, deflateLevel)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return w
}}

// GzipTo compresses what is written for one request only. Done ends the body if it is complete, and
// lets others use the compressor.
func GzipTo(w io.Writer) (body io.Writer, done func(complete bool) error) {
	z := gzips.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func(complete bool) (err error) {
		if complete {
			err = z.Close()
		}
		z.Reset(nil)
		gzips.Put(z)
		return err
	}
}

// GzipBody compresses a short body that is made for one request only.
func GzipBody(plain []byte) []byte {
	var b bytes.Buffer
	body, done := GzipTo(&b)
	_, err := body.Write(plain)
	if err = errors.Join(err, done(true)); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	return b.Bytes()
}
