package fair

import (
	"errors"
	"io"
	"slices"
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

// named claims for a user.
type named struct {
	Claimant
	user string
}

// User implements Claimant.
func (n named) User() string { return n.user }

// A body without a large buffer is written in small pieces.
func TestLargeBuffers(t *testing.T) {
	for large, want := range map[bool]int{false: smallSize, true: WriteSize} {
		most := 0
		if _, err := WriteLong(writerFunc(func(p []byte) (int, error) {
			most = max(most, len(p))
			return len(p), nil
		}), &inPieces{make([]byte, 2*WriteSize)}, -1, nil, large, nil); err != nil || most != want {
			t.Errorf("large: %t: pieces of %d bytes, %v", large, most, err)
		}
	}
}

// Only the bytes that the client's connection took count, not those that the body has written: some
// are still in the buffer, and a body may be compressed meanwhile.
func TestOnlyBytesOfTheClientCount(t *testing.T) {
	left := 2 * WriteSize
	n, err := WriteLong(writerFunc(func(p []byte) (int, error) {
		if left -= len(p); left < 0 {
			return 0, io.ErrClosedPipe
		}
		return len(p), nil
	}), &inPieces{make([]byte, 10*WriteSize)}, -1, nil, true, nil)
	if !errors.Is(err, io.ErrClosedPipe) || n != 2*WriteSize {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// After a minute, a list ends if its objects would not be in memory otherwise.
func TestListEndsWithItsState(t *testing.T) {
	for _, stays := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), time.Duration(0)
			_, err := WriteLong(writerFunc(func(p []byte) (int, error) {
				time.Sleep(time.Duration(len(p)) * time.Second / (100 << 10)) // faster than listPace
				return len(p), nil
			}), &inPieces{make([]byte, 20<<20)}, -1, nil, true, stayer(func() bool {
				asked = time.Since(began)
				return stays
			}))
			if errors.Is(err, ErrSlowList) == stays || asked < listGrace {
				t.Errorf("stays: %t, %v after %s", stays, err, time.Since(began))
			}
		})
	}
}

// A client that reads as fast as estimated gets its list in turns of several pieces. A client that reads
// more slowly holds a slot for the estimated time of one piece only. Between the pieces of a body that
// may wait, nobody has the slot.
func TestPiecesShareTurns(t *testing.T) {
	const pieces = 40
	together := TurnWork / int(writeCost*WriteSize)
	for name, test := range map[string]struct {
		rest  int64
		slow  int // the first piece for which the client takes longer than estimated
		turns int
	}{
		"fast":           {pieces * WriteSize, pieces, pieces / together},
		"slow":           {pieces * WriteSize, 0, pieces},
		"slow meanwhile": {pieces * WriteSize, together + 4, 1 + 1 + pieces - together - 5},
		"may wait":       {0, pieces, pieces},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots, written, turns := NewSlots(1), 0, map[*writeTurn]bool{}
				meter := NewMeter(t.Context(), named{user: "a"}, slots, false)
				to := &turning{turns: &meter, begun: true, rest: test.rest}
				to.Writer = writerFunc(func(p []byte) (int, error) {
					turns[to.turn] = true
					if slots.Short.Taken() != 1 {
						t.Error("a piece is written without a slot")
					}
					takes, slow := writeCost*time.Duration(len(p))/2, written >= test.slow
					if slow {
						takes *= 4
					}
					time.Sleep(takes)
					if synctest.Wait(); slots.Short.Taken() == 1 == slow {
						t.Errorf("piece %d: the slot is held: %t", written, !slow)
					}
					written++
					return len(p), nil
				})
				for range pieces {
					if _, err := to.Write(make([]byte, WriteSize)); err != nil {
						t.Fatal(err)
					}
					if slots.Short.Taken() == 1 && test.rest == 0 {
						t.Error("the slot is held while the body may wait")
					}
				}
				if len(turns) != test.turns || slots.Short.Taken() != 0 {
					t.Errorf("%d turns instead of %d; %d slots are taken in the end", len(turns), test.turns, slots.Short.Taken())
				}
			})
		})
	}
}
