package derived

import (
	"errors"
	"io"
	"slices"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// OneOff is a list that is indented or compressed for one request while it is written. Even for a
// long list, it needs only the memory of a piece or a compressor. It waits for turns through the
// read's meter, by the bytes that it writes: a deeply nested object may grow a thousandfold.
type OneOff struct {
	List    *List
	Meter   *fair.Meter
	Indents bool
	// Compresses makes the list one gzip member. The response holds room for the compressor.
	Compresses bool
}

// WriteTo implements io.WriterTo.
func (o *OneOff) WriteTo(w io.Writer) (n int64, err error) {
	defer o.Meter.ReleaseSlot()
	counted := &turnWriter{to: w, meter: o.Meter}
	if o.Compresses {
		counted.cost += fair.GzipOnceCost
		body, done := wire.GzipTo(w)
		defer func() { err = errors.Join(err, done(err == nil)) }()
		counted.to = body
	}
	if !o.Indents {
		return o.List.WriteTo(counted)
	}
	counted.cost += fair.IndentCost
	indenter := wire.NewIndenter(counted)
	if n, err = o.List.WriteTo(indenter); err == nil {
		err = indenter.Flush()
	}
	return n, err
}

// turnWriter spends the cost of each write through the meter, and so waits for turns.
type turnWriter struct {
	to    io.Writer
	meter *fair.Meter
	cost  int64 // for each byte
}

// Write implements io.Writer. A large object takes several turns.
func (m *turnWriter) Write(p []byte) (n int, err error) {
	const most = 32 << 10
	for piece := range slices.Chunk(p, most) {
		if err := m.meter.Spend(m.cost * int64(len(piece))); err != nil {
			return n, err
		}
		wrote, err := m.to.Write(piece)
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}
