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
			if err := m.Spend(longWork + 1); err != nil {
				t.Fatal(err)
			}
			long = append(long, m)
		}
		short := meter("victim")
		if err := short.Spend(longWork); err != nil { // would never return otherwise
			t.Fatal(err)
		}
		short.ReleaseSlot()
		turn, err := short.write(WriteSize, 0)
		if err != nil {
			t.Fatal(err)
		}
		turn.end()
		spent := false
		other := meter("other")
		go func() {
			spent = other.Spend(2*longWork) == nil
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
