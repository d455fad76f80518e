package fair

import (
	"context"
	"testing"
	"testing/synctest"
)

// reader is a user's request.
type reader string

// User implements Claimant.
func (r reader) User() string { return string(r) }

// Attended implements Claimant.
func (reader) Attended(ctx context.Context) (_ context.Context, stop func()) { return ctx, func() {} }

// A long turn delays no other turns, except long ones.
func TestLongTurnsHaveTheirOwnSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := NewSlots(1)
		meter := func(user string) *Meter {
			m := NewMeter(t.Context(), reader(user), slots, false)
			return &m
		}
		var long []*Meter
		for range slots.Short.Capacity {
			m := meter("attacker")
			if err := m.Spend(longStep + 1); err != nil {
				t.Fatal(err)
			}
			long = append(long, m)
		}
		short := meter("victim")
		if err := short.Spend(longStep); err != nil { // would never return otherwise
			t.Fatal(err)
		}
		short.ReleaseSlot()
		spent := false
		other := meter("other")
		go func() {
			spent = other.Spend(2*longStep) == nil
			other.ReleaseSlot()
		}()
		if synctest.Wait(); spent {
			t.Error("there are more long turns than slots")
		}
		for _, m := range long {
			m.ReleaseSlot()
		}
		if synctest.Wait(); !spent || slots.Short.Taken() != 0 || slots.Long.Taken() != 0 {
			t.Errorf("%d and %d slots are taken", slots.Short.Taken(), slots.Long.Taken())
		}
	})
}

// A read needs no slot for its first turn. It holds one for each further turn, and waits when it has
// used it. A read that has given its slot back needs another one.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := NewSlots(1)
		m := NewMeter(t.Context(), reader("a"), slots, false)
		spend := func(bytes, taken int64) {
			t.Helper()
			if err := m.Spend(bytes); err != nil || slots.Short.Taken() != taken {
				t.Errorf("%v, %d slots are taken, want %d", err, slots.Short.Taken(), taken)
			}
		}
		spend(Turn, 0)
		spend(1, 1)
		other := false
		go func() {
			other = slots.Short.Take(t.Context(), "b", 1) == nil
			slots.Short.Give("b", 1)
		}()
		synctest.Wait()
		spend(Turn-1, 1)
		if synctest.Wait(); other {
			t.Error("the turn has ended too early")
		}
		spend(1, 1)
		if synctest.Wait(); !other {
			t.Error("another user's turn has not come")
		}
		m.ReleaseSlot()
		spend(1, 1)
		m.End()
		spend(WriteSize, 0)
		spend(1, 1)
		m.ReleaseSlot()
		if n := slots.Short.Taken(); n != 0 {
			t.Errorf("%d slots are taken in the end", n)
		}
	})
}
