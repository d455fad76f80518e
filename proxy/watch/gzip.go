package watch

import (
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// Compression says which watches are compressed, if the client accepts gzip.
type Compression string

// The values of [Compression].
const (
	CompressAlways Compression = "always"
	CompressNever  Compression = "never"
)

// Includes reports whether a watch is compressed. upstream says whether upstream would do so: some
// versions of kube-apiserver compress watches that begin with the state and have bookmarks.
func (c Compression) Includes(upstream bool) bool {
	return c == CompressAlways || c != CompressNever && upstream
}

// member writes a watch as one gzip member. An event is compressed once for all watches. Other
// frames, which belong to this watch alone, are collected in plain and compressed together.
type member struct {
	out   *exchange.ChunkWriter
	plain exchange.ChunkWriter // writes to the member itself
	sum   wire.Sum
}

func newMember(out *exchange.ChunkWriter) *member {
	m := &member{out: out}
	m.plain = exchange.ChunkWriter{To: m, Unchunked: true}
	buf := out.Pending()
	*buf = append(*buf, wire.GzipHeader...)
	return m
}

// Write implements io.Writer. It compresses frames that belong to this watch alone.
func (m *member) Write(frames []byte) (int, error) {
	return len(frames), m.add(wire.EventSegment(frames))
}

// add appends a segment to the pending bytes. It does not copy a long segment.
func (m *member) add(s *wire.Segment) error {
	m.sum.Add(s.Sum)
	return m.out.Add(s.Bytes())
}

// end completes the gzip member, if there is one. Without its end, the client notices that the
// watch is incomplete.
func (m *member) end() {
	if m == nil || m.plain.Flush() != nil {
		return
	}
	buf := m.out.Pending()
	*buf = append(*buf, m.sum.Trailer()...)
	_ = m.out.Flush() // the client may be gone
}
