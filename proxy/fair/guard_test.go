package fair

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A client that does not read holds room after a grace, once, and gives it back as soon as it reads.
// Without room it is refused. The room returns to the account from which it was taken.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, other := NewPool(4, false), NewPool(4, false)
		account := &account{pool: w}
		g := NewGuard(3, account)
		is := func(when string, taken, times int64) {
			t.Helper()
			synctest.Wait()
			if n := w.Taken() + other.Taken(); n != taken || account.refused.Load() != times {
				t.Errorf("%s: %d bytes are held, %d times refused; want %d and %d", when, n, account.refused.Load(), taken, times)
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
		account.pool = other
		if g.End() {
			t.Error("it was never refused")
		}
		is("read at last", 0, 1)
		g.Begin()
		time.Sleep(guardGrace)
		is("with another account", 3, 1)
		if g.End(); w.Taken() != 0 || other.Taken() != 0 {
			t.Error("room is never given back")
		}
	})
}

// account has unread bytes in a pool.
type account struct {
	pool    *Pool
	refused atomic.Int64
}

func (a *account) UnreadIn() (*Pool, string) { return a.pool, "a" }

func (a *account) RefuseUnread() { a.refused.Add(1) }
