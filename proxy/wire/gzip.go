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
// result is one gzip member. Every gzip reader accepts it. A watch is put together in the same way,
// over its whole life. A reader can decompress each segment as soon as it arrives.
//
// Kube-apiserver compresses a list as a whole. A segment of few small objects would be larger if it
// were compressed alone. So a segment may refer to its context: the end of the segment before it.
// After an update, two segments are made again: the changed segment and the next segment, which
// refers to it.

const (
	// GzipThreshold is the length above which kube-apiserver compresses a body.
	GzipThreshold = 128 << 10
	// GzipHeader has no name and no time. Like Go's, it says deflate, fastest, unknown system.
	GzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
	// storedMax limits an uncompressed block; storedHead is the block's overhead.
	storedMax  = 1<<16 - 1
	storedHead = 5
	trailerLen = 8
	// storedEvent is the maximum length of a watch event that is not compressed.
	storedEvent = 200
	// With deflateLevel and ContextMax every list is smaller than kube-apiserver's, by 11 % for
	// small objects. With levels from 1 to 6, some lists are larger.
	deflateLevel = 7
	// onceLevel is for one client, and for segments that are soon out of date. It needs a fifth of
	// the time of deflateLevel, and bodies are still smaller than kube-apiserver's.
	onceLevel = 2
	// ContextMax limits a context, in bytes. 32 KiB made compression slower, and nothing smaller.
	ContextMax = 8 << 10
)

// Segment is a compressed piece of a body.
type Segment struct {
	Sum
	deflated []byte
}

// Bytes returns the compressed bytes.
func (s *Segment) Bytes() []byte { return s.deflated }

// Len returns the length of the compressed bytes.
func (s *Segment) Len() int { return len(s.deflated) }

// Sum has the checksum and the length of plain bytes. The zero value is the Sum of no bytes.
type Sum struct {
	crc   uint32
	shift uint32 // x to the power of the length in bits
	plain int64
}

// Add appends plain bytes. Later, only a Sum to which nothing has been added may be appended.
func (s *Sum) Add(next Sum) {
	s.crc = multiply(s.crc, next.shift) ^ next.crc
	s.plain += next.plain
}

// Trailer returns the end of a gzip member whose plain bytes have this Sum.
func (s *Sum) Trailer() []byte {
	trailer := make([]byte, 0, len(lastBlock)+trailerLen)
	trailer = append(trailer, lastBlock...)
	trailer = binary.LittleEndian.AppendUint32(trailer, s.crc)
	// The length is modulo 2^32, as in RFC 1952.
	return binary.LittleEndian.AppendUint32(trailer, uint32(s.plain))
}

var (
	deflaters      = sync.Pool{New: func() any { return must(flate.NewWriter(nil, deflateLevel)) }}
	briefDeflaters = sync.Pool{New: func() any { return must(flate.NewWriter(nil, onceLevel)) }}
)

// NewSegment compresses a piece of a body. The result may only follow a segment whose plain bytes
// end with context. context may be empty. brief is true for a segment that is soon out of date.
func NewSegment(context, plain []byte, brief bool) *Segment {
	pool := &deflaters
	if brief {
		pool = &briefDeflaters
	}
	w := pool.Get().(*flate.Writer)
	defer pool.Put(w)
	var b bytes.Buffer
	w.ResetDict(&b, context[max(0, len(context)-ContextMax):])
	_, err := w.Write(plain)
	if err = errors.Join(err, w.Flush()); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	w.ResetDict(nil, nil)
	return newSegment(bytes.Clone(b.Bytes()), plain)
}

// StoredSegment keeps a short piece uncompressed: compression would cost more than it saves.
func StoredSegment(plain []byte) *Segment {
	if len(plain) > storedMax {
		return NewSegment(nil, plain, false)
	}
	block := make([]byte, storedHead, storedHead+len(plain)) // stored, not the last block
	binary.LittleEndian.PutUint16(block[1:], uint16(len(plain)))
	binary.LittleEndian.PutUint16(block[3:], ^uint16(len(plain)))
	return newSegment(append(block, plain...), plain)
}

// EventSegment compresses a watch event, or the beginning of a watch. It may follow any segment. It
// ends with an empty block: without it, Go's decompressor would keep the event until more arrives.
func EventSegment(plain []byte) *Segment {
	if len(plain) > storedEvent {
		return NewSegment(nil, plain, true) // which ends with such a block
	}
	s := StoredSegment(plain)
	s.deflated = append(s.deflated, emptyBlock...)
	return s
}

func newSegment(deflated, plain []byte) *Segment {
	n := int64(len(plain))
	return &Segment{Sum{crc32.ChecksumIEEE(plain), powerOfX(8 * uint64(n)), n}, deflated}
}

// Gzip puts segments together without a copy.
func Gzip(segments []*Segment) (pieces [][]byte, length int64) {
	pieces = append(make([][]byte, 0, len(segments)+2), []byte(GzipHeader))
	length = int64(len(GzipHeader))
	var sum Sum
	for _, s := range segments {
		pieces = append(pieces, s.deflated)
		length += int64(len(s.deflated))
		sum.Add(s.Sum)
	}
	trailer := sum.Trailer()
	return append(pieces, trailer), length + int64(len(trailer))
}

// lastBlock is an empty final block, and emptyBlock an empty block before further ones.
const (
	lastBlock  = "\x03\x00"
	emptyBlock = "\x00\x00\x00\xff\xff"
)

// A CRC-32 is the remainder of a polynomial over GF(2), with its bits reversed. When n bits are
// appended, the CRC is multiplied by x to the power of n, and the CRC of the n bits is added.

const one = uint32(1) << 31

// multiply returns the product of two polynomials modulo the CRC's polynomial. Each compressed
// event of each watch needs a product. Branches that depend on bits would double its time.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		product ^= b & -(a >> 31)
		b = timesX(b)
	}
	return product
}

func timesX(p uint32) uint32 { return p>>1 ^ crc32.IEEE&-(p&1) }

// squares has x to the power of 2, 4, 8 and so on.
var squares = func() (table [64]uint32) {
	p := timesX(one)
	for i := range table {
		table[i] = p
		p = multiply(p, p)
	}
	return table
}()

func powerOfX(n uint64) uint32 {
	p := one
	for i := 0; n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			p = multiply(squares[i], p)
		}
	}
	return p
}

var gzips = sync.Pool{New: func() any { return must(gzip.NewWriterLevel(nil, onceLevel)) }}

// GzipTo compresses a body for one request. done must be called, and ends the body if complete.
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

// GzipBody compresses a short body for one request.
func GzipBody(plain []byte) []byte {
	var b bytes.Buffer
	body, done := GzipTo(&b)
	_, err := body.Write(plain)
	if err = errors.Join(err, done(true)); err != nil {
		panic("BUG: memory cannot be written: " + err.Error())
	}
	return b.Bytes()
}
