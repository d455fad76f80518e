package fair

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A client that does not read holds room after a grace, once, and gives it back as soon as it reads.
// Without room it is refused, and also if others want the room that it has held for long.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkspace(4, false, 0)
		var refused atomic.Int64
		g := w.Guard(3, func() string { return "a" }, func() { refused.Add(1) })
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

		if !w.Try(Claim{User: "b", Size: 2}) {
			t.Fatal("no room")
		}
		g.Begin()
		time.Sleep(guardGrace)
		is("no room", 2, 1)
		g.End()
		w.Give("b", 2)

		g.Begin()
		time.Sleep(guardGrace)
		is("held", 3, 1)
		go func() { // another claim waits
			if w.Take(t.Context(), Claim{User: "b", Size: 2}) == nil {
				w.Give("b", 2)
			}
		}()
		time.Sleep(guardAgain - time.Nanosecond)
		is("wanted", 3, 1)
		time.Sleep(time.Nanosecond)
		is("wanted for long", 3, 2)
		g.End()
		is("ended", 0, 2)

		g.Begin()
		if !g.Hold() {
			t.Error("no room")
		}
		time.Sleep(guardGrace)
		is("taken at once, and wanted", 3, 2)
		time.Sleep(guardAgain)
		is("the same for long", 3, 3)
		g.End()
		is("the end", 0, 3)

		g.Begin()
		time.Sleep(guardGrace)
		is("before a large frame", 3, 3)
		g.Large(4)
		g.End()
		g.Begin()
		time.Sleep(guardGrace)
		is("a large frame", 4, 3)
		g.Large(0)
		g.End()
		g.Begin()
		time.Sleep(guardGrace)
		is("after it", 3, 3)
		g.End()
		is("read at last", 0, 3)
	})
}
