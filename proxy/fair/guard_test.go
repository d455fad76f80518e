package fair

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A client that does not read holds room after a grace, once, and gives it back as soon as it reads.
// Without room it is refused.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewPool(4, false)
		var refused atomic.Int64
		g := NewGuard(3, func() (*Pool, string) { return w, "a" }, func() { refused.Add(1) })
		is := func(when string, taken, times int64) {
			t.Helper()
			synctest.Wait()
			if w.Taken() != taken || refused.Load() != times {
				t.Errorf("%s: %d bytes are held, %d times refused; want %d and %d", when, w.Taken(), refused.Load(), taken, times)
			}
		}
		g.Begin()
		g.Begin()
		time.Sleep(guardGrace - time.Nanosecond)
		is("within the grace", 0, 0)
		time.Sleep(time.Nanosecond)
		is("after the grace", 3, 0)
		if !g.Hold() {
			t.Error("no room for what it holds")
		}
		time.Sleep(time.Hour)
		is("unread for long", 3, 0)
		g.End()
		g.End()
		time.Sleep(time.Hour)
		is("read", 0, 0)

		if !w.Try("b", 2) {
			t.Fatal("no room")
		}
		g.Begin()
		time.Sleep(guardGrace)
		is("no room", 2, 1)
		g.End()
		w.Give("b", 2)

		g.Begin()
		time.Sleep(guardGrace)
		is("before a large frame", 3, 1)
		g.Large(4)
		g.End()
		g.Begin()
		time.Sleep(guardGrace)
		is("a large frame", 4, 1)
		g.Large(0)
		g.End()
		g.Begin()
		time.Sleep(guardGrace)
		is("after it", 3, 1)
		g.End()
		is("read at last", 0, 1)
	})
}

// A guard gives its room back to the account that it had when it took the room, and takes the next one from
// the account of then.
func TestGuardChangesItsAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		strangers, users, known := NewPool(4, true), NewPool(4, true), false
		g := NewGuard(3, func() (*Pool, string) {
			if known {
				return users, "a"
			}
			return strangers, "network"
		}, func() { t.Error("refused") })
		for range 2 {
			g.Begin()
			time.Sleep(guardGrace)
			synctest.Wait()
			if a, b := strangers.Taken(), users.Taken(); a+b != 3 || known != (b == 3) {
				t.Errorf("known: %t: strangers hold %d, users %d", known, a, b)
			}
			known = true
			g.End()
			if n := strangers.Taken() + users.Taken(); n != 0 {
				t.Errorf("%d are never given back", n)
			}
		}
	})
}
