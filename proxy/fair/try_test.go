package fair

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
)

// A large claim that waits stops no claim that cannot wait and for which there is room. It is granted
// once there is room for it.
func TestTryBesideLargeClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(100, true, 0)
		if !q.Try(Claim{User: "a", Size: 45, Cost: 45}) {
			t.Fatal("no room in an empty queue")
		}
		granted := make(chan error, 1)
		go func() { granted <- q.Take(t.Context(), Claim{User: "large", Size: 60, Cost: 60}) }()
		synctest.Wait()
		for _, user := range []string{"b", "c", "large", "b"} {
			if !q.Try(Claim{User: user, Size: 2, Cost: 2}) {
				t.Errorf("%s: no room although %d of 100 are taken", user, q.Taken())
			}
		}
		if q.Try(Claim{User: "a", Size: 10}) || q.Try(Claim{User: "d", Size: 48}) {
			t.Error("granted more than a user's share, or than is free")
		}
		for _, held := range []Claim{{User: "b", Size: 4}, {User: "c", Size: 2}, {User: "large", Size: 2}, {User: "a", Size: 45}} {
			if len(granted) > 0 {
				t.Error("the large claim was granted too early")
			}
			q.Give(held.User, held.Size)
			synctest.Wait()
		}
		select {
		case err := <-granted:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Fatal("the large claim still waits")
		}
		q.Give("large", 60)
		if q.Taken() != 0 || q.Waiting() != 0 {
			t.Errorf("%d are taken, %d wait", q.Taken(), q.Waiting())
		}
	})
}

// A user whose claims need no wait owes nothing for them if nobody waited. If others waited, the user
// owes the capacity at most.
func TestTryOwesLittle(t *testing.T) {
	for _, crowded := range []bool{false, true} {
		const capacity, large = 100, 24
		q := NewQueue(capacity, true, 1<<20)
		q.Try(Claim{User: "a", Size: 1, Cost: 1}) // stays, as an unread log
		enter := func(user string, size int64) *Waiter {
			w, err := q.Enter(Claim{User: user, Size: size, Cost: size})
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		var first *Waiter
		if crowded {
			first = enter("first", capacity)
		}
		for range 100 * capacity {
			if !q.Try(Claim{User: "a", Size: 1, Cost: 1}) {
				t.Fatal("no room")
			}
			q.Give("a", 1)
		}
		if crowded {
			q.leave(first)
		}
		open := map[string]*Waiter{}
		for _, user := range []string{"b", "c", "d", "e", "f"} {
			open[user] = enter(user, large)
		}
		a := enter("a", 5)
		granted := func(w *Waiter) bool {
			select {
			case <-w.decided:
				return true
			default:
				return false
			}
		}
		served := 0
		for before := -1; a != nil && !granted(a) && served != before; {
			before = served
			for user, w := range open {
				if w == nil || granted(w) {
					served++
					q.Give(user, large)
					open[user] = enter(user, large)
					break
				}
			}
		}
		most := len(open)
		if crowded {
			most *= capacity/large + 2
		}
		if a != nil && !granted(a) || served > most {
			t.Errorf("crowded %t: %d claims of others were granted first, want %d at most", crowded, served, most)
		}
	}
}

// A claim that need not wait may change whose turn it is. The first claim in turn never waits although
// there is room.
func TestTryWakesOthers(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a test
		q := NewQueue(100, true, 1<<20)
		var held []Claim
		var waiting []*Waiter
		for op := range 60 {
			c := Claim{User: string(rune('a' + r.IntN(3))), Size: 1 + r.Int64N(60)}
			c.Cost = c.Size
			switch r.IntN(3) {
			case 0:
				if w, err := q.Enter(c); w != nil {
					waiting = append(waiting, w)
				} else if err == nil {
					held = append(held, c)
				}
			case 1:
				c.Size = 1 + c.Size/6
				if q.Try(c) {
					held = append(held, c)
				}
			case 2:
				if len(held) > 0 {
					i := r.IntN(len(held))
					q.Give(held[i].User, held[i].Size)
					held = slices.Delete(held, i, i+1)
				}
			}
			waiting = slices.DeleteFunc(waiting, func(w *Waiter) bool {
				select {
				case <-w.decided:
					held = append(held, w.Claim)
					return true
				default:
					return false
				}
			})
			if f := q.mu.turns.first(); f != nil {
				if c := f.waiters.Front().Value.(*Waiter).Claim; q.sharesLocked(f, c.Size) && c.Size <= q.mu.free {
					t.Fatalf("seed %d, step %d: %s waits for %d although %d are free", seed, op, c.User, c.Size, q.mu.free)
				}
			}
		}
	}
}
