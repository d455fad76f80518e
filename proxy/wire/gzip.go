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

// A list is compressed in segments that are made once. A request puts the segments together: a gzip
// header, deflate blocks that end on a byte boundary, and a trailer with the combined checksum. The
// result is one gzip member. Every reader accepts it.
//
// Kube-apiserver compresses a list as a whole. Compressed alone, a segment of few small objects
// would be larger than in that list. So a segment may refer to the end of the segment before it,
// its context. After an update, two segments are made again: the changed one and the one that
// refers to it.

const (
	// GzipThreshold is the length above which kube-apiserver compresses a body.
	GzipThreshold = 128 << 10
	// gzipHeader has no name and no time: deflate, fastest, unknown system, as Go writes it.
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
	// storedMax bounds an uncompressed block; storedHead is its overhead.
	storedMax  = 1<<16 - 1
	storedHead = 5
	trailerLen = 8
	// With deflateLevel and ContextMax every list is smaller than kube-apiserver's, by 11 % for
	// small objects. With levels from 1 to 6, some lists are larger.
	deflateLevel = 7
	// ContextMax bounds a context, in bytes. 32 KiB took longer and saved nothing.
	ContextMax = 8 << 10
)

// Segment is a compressed piece of a body.
type Segment struct {
	deflated []byte
	crc      uint32
	shift    uint32 // x to the power of the plain length in bits, see combine
	plain    int64
}

// Len is the length of the compressed bytes.
func (s *Segment) Len() int { return len(s.deflated) }

var deflaters = sync.Pool{New: func() any { return must(flate.NewWriter(nil, deflateLevel)) }}

// NewSegment compresses a piece of a body. The result may only follow a segment whose plain bytes
// end with context, which may be empty.
func NewSegment(context, plain []byte) *Segment {
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	var b bytes.Buffer
	w.ResetDict(&b, context[max(0, len(context)-ContextMax):])
	_, err := w.Write(plain)
	if err = errors.Join(err, w.Flush()); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	w.ResetDict(nil, nil)
	return newSegment(bytes.Clone(b.Bytes()), plain)
}

// StoredSegment keeps a short piece uncompressed, because compression would cost more than it
// saves.
func StoredSegment(plain []byte) *Segment {
	if len(plain) > storedMax {
		return NewSegment(nil, plain)
	}
	block := make([]byte, storedHead, storedHead+len(plain)) // stored, not the last block
	binary.LittleEndian.PutUint16(block[1:], uint16(len(plain)))
	binary.LittleEndian.PutUint16(block[3:], ^uint16(len(plain)))
	return newSegment(append(block, plain...), plain)
}

func newSegment(deflated, plain []byte) *Segment {
	n := int64(len(plain))
	return &Segment{deflated, crc32.ChecksumIEEE(plain), powerOfX(8 * uint64(n)), n}
}

// Gzip puts segments together without a copy.
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
	trailer = binary.LittleEndian.AppendUint32(trailer, uint32(plain)) // modulo 2^32, as RFC 1952 says
	return append(pieces, trailer), length + int64(len(trailer))
}

// lastBlock is an empty final block.
const lastBlock = "\x03\x00"

// A CRC-32 is the remainder of a polynomial over GF(2), with its bits reversed. When n bits are
// appended, the CRC is multiplied by x to the power of n, and the CRC of the n bits is added.

// combine is the checksum of a prefix and a segment.
func combine(crc uint32, s *Segment) uint32 { return multiply(crc, s.shift) ^ s.crc }

const one = uint32(1) << 31

// multiply is the product of two polynomials modulo the CRC's polynomial.
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

var gzips = sync.Pool{New: func() any { return must(gzip.NewWriterLevel(nil, deflateLevel)) }}

// GzipTo compresses a one-off body. Done ends a complete body and gives the compressor back.
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

// GzipBody compresses a short one-off body.
func GzipBody(plain []byte) []byte {
	var b bytes.Buffer
	body, done := GzipTo(&b)
	_, err := body.Write(plain)
	if err = errors.Join(err, done(true)); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	return b.Bytes()
}
