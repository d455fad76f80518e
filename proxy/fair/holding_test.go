package fair

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// holds checks what is taken from a pool.
func holds(t *testing.T, what string, p *Pool, want int64) {
	t.Helper()
	if n := p.Taken(); n != want {
		t.Errorf("%s: %d are held, want %d", what, n, want)
	}
}

// A request gives back what it holds, once, whatever its end is. A claim to memory that is not free
// waits, and fails after Patience. One that does not fit even if all others end fails at once.
func TestHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(100, false)
		first, second := p.Holding("a"), p.Holding("a")
		if !first.Try(30) || first.Take(t.Context(), 40) != nil || second.Try(31) {
			t.Errorf("%d of 100 are taken", p.Taken())
		}
		began := time.Now()
		if err := second.Take(t.Context(), 40); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != Patience {
			t.Errorf("no room: %v after %s", err, time.Since(began))
		}
		if first.Give(10); !second.Try(40) {
			t.Error("nothing was given back")
		}
		first.Free()
		first.Free()
		holds(t, "the second request", p, 40)
		second.Free()
		holds(t, "in the end", p, 0)

		p = NewPool(100, true)
		h := p.Holding("a")
		h.Try(10)
		for size, want := range map[int64]error{40: nil, 41: errNeverFits, 101: errNeverFits} {
			began := time.Now()
			err := h.Take(t.Context(), size)
			if !errors.Is(err, want) || time.Since(began) != 0 {
				t.Errorf("%d: %v after %s", size, err, time.Since(began))
			}
			if err == nil {
				h.Give(size)
			}
		}
		if err := p.Holding("b").Take(t.Context(), 90); err != nil {
			t.Errorf("a first claim: %v", err)
		}
	})
}

// Nothing is taken for a request that has ended, because nothing would give it back. A request without a
// Holding has no bound.
func TestHoldingHasEnded(t *testing.T) {
	var none *Holding
	if none.Free(); !none.Try(1<<40) || none.Take(t.Context(), 1<<40) != nil {
		t.Error("refused")
	}
	none.Give(1)
	p := NewPool(100, false)
	h := p.Holding("a")
	h.Free()
	defer func() {
		if recover() == nil {
			t.Error("a request that has ended takes memory")
		}
		holds(t, "after its end", p, 0)
	}()
	h.Try(1)
}

// Several requests hold common memory once, until the last of them ends. A request that joins later needs
// room for it.
func TestCommon(t *testing.T) {
	p := NewPool(100, false)
	first, second, third := p.Holding("a"), p.Holding("a"), p.Holding("a")
	first.Try(50)
	c := first.Share(40)
	if first.Give(10); !first.Join(c) || !second.Join(c) {
		t.Error("not joined")
	}
	holds(t, "two requests", p, 40)
	first.Free()
	holds(t, "the last request", p, 40)
	second.Free()
	holds(t, "none", p, 0)
	if p.Try("b", 61); third.Join(c) {
		t.Error("joined without room")
	}
	if p.Give("b", 61); !third.Join(c) || !third.Join(nil) {
		t.Error("not joined")
	}
	holds(t, "a later request", p, 40)
	third.Free()
	holds(t, "in the end", p, 0)
}
