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

// A long body has a large buffer. Beyond half of these buffers, a user's bodies are written in smaller
// pieces, and another user's are not. All buffers are given back.
func TestLargeBuffersAreBounded(t *testing.T) {
	var all []func()
	for TakeLarge("greedy") {
		all = append(all, func() { GiveLarge("greedy") })
	}
	if len(all) != LargeMost/2 {
		t.Errorf("one user has %d buffers", len(all))
	}
	longest := func(user string) (most int) {
		meter := NewMeter(t.Context(), named{user: user}, nil, false)
		pieces := &inPieces{make([]byte, 2*WriteSize)}
		if _, err := WriteLong(writerFunc(func(p []byte) (int, error) {
			most = max(most, len(p))
			return len(p), nil
		}), pieces, -1, &meter, nil, nil); err != nil {
			t.Error(err)
		}
		return most
	}
	if n := longest("greedy"); n != smallSize {
		t.Errorf("a body without a large buffer was written in pieces of %d bytes", n)
	}
	if n := longest("modest"); n != WriteSize {
		t.Errorf("another user's body was written in pieces of %d bytes", n)
	}
	for _, giveBack := range all {
		giveBack()
	}
	if n := LargeTaken(); n != 0 {
		t.Errorf("%d buffers are held in the end", n)
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
	}), &inPieces{make([]byte, 10*WriteSize)}, -1, nil, nil, nil)
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
			}), &inPieces{make([]byte, 20<<20)}, -1, nil, nil, stayer(func() bool {
				asked = time.Since(began)
				return stays
			}))
			if errors.Is(err, ErrSlowList) == stays || asked < listGrace {
				t.Errorf("stays: %t, %v after %s", stays, err, time.Since(began))
			}
		})
	}
}

// A client that reads as fast as estimated gets its list in turns of several pieces, up to the cost of
// a turn. A client that reads more slowly holds a slot for the estimated time of one piece only, and
// its user pays for no more. Between the pieces of a body that may wait, nobody has the slot.
func TestPiecesShareTurns(t *testing.T) {
	const pieces = 40
	piece := writeCost * int64(WriteSize)
	for name, test := range map[string]struct {
		length int64
		slow   int  // the first piece for which the client takes longer than estimated
		turns  int  // at most
		held   bool // between the pieces of a turn
	}{
		"fast":           {pieces * WriteSize, pieces, 8, true}, // 1, 2, 4, 8, then 10 pieces
		"slow":           {pieces * WriteSize, 0, pieces, false},
		"slow meanwhile": {pieces * WriteSize, 9, pieces, true}, // within the turn of 8 pieces
		"unknown length": {-1, pieces, pieces, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := NewQueue(1, false, 1<<20)
				var costs []int64
				turn := func() { // a turn has the cost by which it moves its user's next one
					slots.mu.Lock()
					defer slots.mu.Unlock()
					if slots.mu.entered > int64(len(costs)) {
						costs = append(costs, slots.mu.flows["a"].next-slots.mu.now)
					}
				}
				meter := NewMeter(t.Context(), named{user: "a"}, slots, false)
				atOnce, free, written := int64(0), 0, 0
				_, err := WriteLong(writerFunc(func(p []byte) (int, error) {
					turn()
					if first := test.length < 0 && len(costs) == 0; slots.Taken() != 1 && !first { // the body may be short
						t.Error("a piece is written without a slot")
					}
					takes := time.Duration(piece) / 2
					if written++; written > test.slow {
						takes *= 4
					}
					time.Sleep(takes)
					synctest.Wait()
					if slots.Taken() == 0 {
						free++
					}
					return len(p), nil
				}), &between{pieces, func() { atOnce += slots.Taken() }}, test.length, &meter, nil, nil)
				if err != nil || slots.Taken() != 0 {
					t.Errorf("%v, %d slots are taken in the end", err, slots.Taken())
				}
				if held, slow := atOnce > 0, test.slow < pieces; held != test.held || slow != (free > 1) {
					t.Errorf("the slot was held before %d pieces, and free in %d", atOnce, free)
				}
				var sum int64
				for _, cost := range costs {
					if sum += cost; cost > TurnWork {
						t.Errorf("a turn costs %d", cost)
					}
				}
				if len(costs) > test.turns || !test.held && len(costs) < pieces-1 || sum > pieces*piece+int64(len(costs))*piece || sum < (pieces-1)*piece {
					t.Errorf("%d turns cost %d, the pieces cost %d", len(costs), sum, pieces*piece)
				}
			})
		})
	}
}

// between is a body of several large pieces. It calls a function before each piece but the first.
type between struct {
	pieces int
	before func()
}

// WriteTo implements io.WriterTo.
func (b *between) WriteTo(w io.Writer) (n int64, err error) {
	piece := make([]byte, WriteSize)
	for i := range b.pieces {
		if i > 0 {
			b.before()
		}
		m, err := w.Write(piece)
		if n += int64(m); err != nil {
			return n, err
		}
	}
	return n, nil
}
