package derived

import (
	"errors"
	"io"
	"slices"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// OneOff is a list that is compressed for one request while it is written, as one gzip member. Even
// a long list needs only the memory of a compressor, for which the response holds room.
type OneOff struct {
	List  *List
	Meter *fair.Meter
}

// WriteTo implements io.WriterTo.
func (o *OneOff) WriteTo(w io.Writer) (n int64, err error) {
	body, done := wire.GzipTo(w)
	defer func() { err = errors.Join(err, done(err == nil)) }()
	return o.List.WriteTo(&turnWriter{to: body, meter: o.Meter})
}

// turnWriter spends the cost of each write through the meter, and so waits for turns.
type turnWriter struct {
	to    io.Writer
	meter *fair.Meter
}

// Write implements io.Writer. A large object takes several turns.
func (m *turnWriter) Write(p []byte) (n int, err error) {
	const most = 32 << 10
	for piece := range slices.Chunk(p, most) {
		if err := m.meter.Spend(int64(len(piece))); err != nil {
			return n, err
		}
		wrote, err := m.to.Write(piece)
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}
