package fair

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A request gives back what it holds, once, whatever its end is. A claim to memory that is not free
// waits, and fails after Patience.
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
		first.Give(10)
		if !second.Try(40) {
			t.Error("nothing was given back")
		}
		first.Free()
		first.Free()
		if n := p.Taken(); n != 40 {
			t.Errorf("one request holds %d instead of 40", n)
		}
		second.Free()
		if n := p.Taken(); n != 0 {
			t.Errorf("%d are never given back", n)
		}
	})
}

// Nothing is taken for a request that has ended, because nothing would give it back.
func TestHoldingHasEnded(t *testing.T) {
	p := NewPool(100, false)
	h := p.Holding("a")
	h.Free()
	defer func() {
		if recover() == nil || p.Taken() > 0 {
			t.Errorf("a request that has ended holds %d bytes", p.Taken())
		}
	}()
	h.Try(1)
}

// A request without a Holding has no bound.
func TestNoHolding(t *testing.T) {
	var none *Holding
	if !none.Try(1<<40) || none.Take(t.Context(), 1<<40) != nil {
		t.Error("refused")
	}
	none.Give(1)
	none.Free()
}

// A claim that does not fit even if all others end fails at once.
func TestImpossibleClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(100, true)
		h := p.Holding("a")
		if !h.Try(10) {
			t.Fatal("no room")
		}
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

// Several requests hold common memory once, until the last of them ends. A request that joins later needs
// room for it.
func TestCommon(t *testing.T) {
	p := NewPool(100, false)
	first, second, third := p.Holding("a"), p.Holding("a"), p.Holding("a")
	if !first.Try(50) {
		t.Fatal("no room")
	}
	c := first.Share(40)
	first.Give(10)
	if !first.Join(c) || !second.Join(c) || p.Taken() != 40 {
		t.Errorf("two requests hold %d instead of 40", p.Taken())
	}
	first.Free()
	if n := p.Taken(); n != 40 {
		t.Errorf("the last request holds %d instead of 40", n)
	}
	second.Free()
	if n := p.Taken(); n != 0 {
		t.Errorf("%d are never given back", n)
	}
	p.Try("b", 61)
	if third.Join(c) {
		t.Error("joined without room")
	}
	p.Give("b", 61)
	if !third.Join(c) || p.Taken() != 40 {
		t.Errorf("a later request holds %d instead of 40", p.Taken())
	}
	third.Free()
	if n := p.Taken(); n != 0 || !third.Join(nil) {
		t.Errorf("%d are never given back", n)
	}
}
