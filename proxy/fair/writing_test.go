package fair

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type writerFunc func(p []byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type stayer func() bool

// Stays implements Stayer.
func (s stayer) Stays() bool { return s() }

// inPieces is a body that is written in pieces of 1,000 bytes.
type inPieces struct{ body []byte }

// WriteTo implements io.WriterTo.
func (b *inPieces) WriteTo(w io.Writer) (n int64, err error) {
	for piece := range slices.Chunk(b.body, 1000) {
		m, err := w.Write(piece)
		if n += int64(m); err != nil {
			return n, err
		}
	}
	return n, nil
}

// A body without a large buffer is written in small pieces. Only the bytes that the client's connection
// took count: some are still in the buffer, and a body may be compressed meanwhile.
func TestLargeBuffers(t *testing.T) {
	for large, want := range map[bool]int{false: smallSize, true: WriteSize} {
		left, most := 2*WriteSize, 0
		list := &List{Content: &inPieces{make([]byte, 10*WriteSize)}}
		n, err := list.Write(writerFunc(func(p []byte) (int, error) {
			if left -= len(p); left < 0 {
				return 0, io.ErrClosedPipe
			}
			most = max(most, len(p))
			return len(p), nil
		}), large)
		if !errors.Is(err, io.ErrClosedPipe) || n != 2*WriteSize || most != want {
			t.Errorf("large: %t: %d bytes in pieces of %d, %v", large, n, most, err)
		}
	}
}

// After a minute, a list ends if its objects would not be in memory otherwise.
func TestListEndsWithItsState(t *testing.T) {
	for _, stays := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), time.Duration(0)
			list := &List{Content: &inPieces{make([]byte, 20<<20)}, State: stayer(func() bool {
				asked = time.Since(began)
				return stays
			})}
			_, err := list.Write(writerFunc(func(p []byte) (int, error) {
				time.Sleep(time.Duration(len(p)) * time.Second / (100 << 10)) // faster than listPace
				return len(p), nil
			}), true)
			if errors.Is(err, ErrSlowList) == stays || asked < listGrace {
				t.Errorf("stays: %t, %v after %s", stays, err, time.Since(began))
			}
		})
	}
}

// Pieces of a list share a turn, which ends after writeTime whatever their size and pace is. A body that may
// wait between its pieces has a slot only while a piece is written.
func TestPiecesShareTurns(t *testing.T) {
	for name, test := range map[string]struct {
		piece         int
		writes, waits time.Duration // for each piece
		body          bool
		most          time.Duration // for which another user waits
	}{
		"list":              {WriteSize, writeTime / 20, 0, false, writeTime},
		"slow list":         {WriteSize, writeTime * 9 / 10, 0, false, writeTime},
		"small pieces":      {4 << 10, writeTime * 9 / 10, 0, false, writeTime},
		"client stops":      {WriteSize, time.Hour, 0, false, writeTime},
		"body":              {WriteSize, writeTime / 20, 0, true, writeTime / 20},
		"body comes late":   {16, 0, writeTime * 9 / 10, true, 0},
		"unread body":       {WriteSize, time.Hour, 0, true, writeTime},
		"several at a time": {4 * WriteSize, writeTime / 20, 0, true, writeTime / 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := NewSlots(1)
				ctx, cancel := context.WithCancel(t.Context())
				meter := NewMeter(ctx, reader("a"), slots, false)
				if err := meter.Spend(Turn); err != nil {
					t.Fatal(err)
				}
				var turns atomic.Int64
				to := &turning{writerFunc(func(p []byte) (int, error) {
					if len(p) > WriteSize {
						t.Errorf("a piece has %d bytes", len(p))
					}
					if slots.Short.Taken() == 1 {
						turns.Add(1)
					}
					select {
					case <-time.After(test.writes):
					case <-ctx.Done():
					}
					return len(p), ctx.Err()
				}), &meter, test.body}
				go func() {
					for ctx.Err() == nil {
						_, _ = to.Write(make([]byte, test.piece))
						time.Sleep(test.waits)
					}
					meter.ReleaseSlot()
				}()
				for turns.Load() == 0 {
					time.Sleep(writeTime / 100)
				}
				for range 5 {
					began := time.Now()
					if err := slots.Short.Take(t.Context(), "b", 1); err != nil || time.Since(began) > test.most {
						t.Errorf("another user waits for %s: %v", time.Since(began), err)
					}
					slots.Short.Give("b", 1)
					time.Sleep(writeTime / 3)
				}
				cancel()
				time.Sleep(time.Minute)
				if n := slots.Short.Taken(); n != 0 {
					t.Errorf("%d slots are taken in the end", n)
				}
			})
		})
	}
}

// A list gives its slot back at its end, also if its client has left.
func TestListGivesItsSlotBack(t *testing.T) {
	for _, broken := range []error{nil, io.ErrClosedPipe} {
		slots := NewSlots(1)
		meter := NewMeter(t.Context(), reader("a"), slots, false)
		if err := meter.Spend(2 * Turn); err != nil {
			t.Fatal(err)
		}
		list := &List{Content: &inPieces{make([]byte, Turn)}, Turns: &meter}
		_, err := list.Write(writerFunc(func(p []byte) (int, error) { return len(p), broken }), true)
		if n := slots.Short.Taken(); n != 0 || !errors.Is(err, broken) {
			t.Errorf("%v: %d slots are taken, %v", broken, n, err)
		}
	}
}
