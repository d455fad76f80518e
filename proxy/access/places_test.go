package access

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A client that floods upstream with questions has half of the places at most and leaves
// the next place to another that asks.
func TestPlacesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, flood, takes = 10, 500, time.Second
		p := newPlaces(most, 64<<20)
		began := time.Now()
		for range flood {
			go func() {
				give, err := p.take(t.Context(), "greedy", 0)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(takes)
				give()
			}()
		}
		synctest.Wait()
		if p.mu.taken != most/2 {
			t.Errorf("a client has %d of %d places", p.mu.taken, most)
		}
		for i := range most {
			give, err := p.take(t.Context(), fmt.Sprint("modest", i%3), 0)
			if err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(began); waited > 0 {
				t.Fatalf("another client waits for %v", waited)
			}
			give()
		}
		// All places are taken, half of them by another: a third waits for one turn.
		var gives []func()
		for range most / 2 {
			give, err := p.take(t.Context(), "second", 0)
			if err != nil {
				t.Fatal(err)
			}
			gives = append(gives, give)
		}
		began = time.Now()
		give, err := p.take(t.Context(), "third", 0)
		if waited := time.Since(began); err != nil || waited > takes {
			t.Errorf("a third client waits for %v: %v", waited, err)
		}
		give()
		for _, give := range gives {
			give()
		}
		time.Sleep(flood * takes)
		synctest.Wait()
		p.empty(t)
	})
}

// What waits is bounded, and the client with the longest line is refused.
func TestPlacesShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, room, flood = 60 << 10, 20, 100
		p := newPlaces(2, room*(size+waitCost))
		ctx, cancel := context.WithCancel(t.Context())
		var gives []func()
		for range 2 {
			give, err := p.take(ctx, fmt.Sprint("holder", len(gives)), size)
			if err != nil {
				t.Fatal(err)
			}
			gives = append(gives, give)
		}
		modest := make(chan error, 1)
		go func() {
			_, err := p.take(ctx, "modest", size)
			modest <- err
		}()
		synctest.Wait()
		outcomes := make(chan error, flood)
		for range flood {
			go func() {
				_, err := p.take(ctx, "greedy", size)
				outcomes <- err
			}()
		}
		synctest.Wait()
		if n := len(outcomes); n != flood-room+1 {
			t.Errorf("%d of %d were refused", n, flood)
		}
		for range len(outcomes) {
			if err := <-outcomes; !errors.Is(err, errCrowded) {
				t.Errorf("refused with %v", err)
			}
		}
		if len(modest) != 0 {
			t.Errorf("another client was refused: %v", <-modest)
		}
		cancel()
		synctest.Wait()
		if err := <-modest; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, give := range gives {
			give()
		}
		p.empty(t)
	})
}

// empty checks that nothing is left.
func (p *places) empty(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.taken != 0 || p.mu.bytes != 0 || len(p.mu.lines) != 0 || p.mu.turns.Len() != 0 {
		t.Errorf("%d places, %d bytes, %d lines and %d turns are left", p.mu.taken, p.mu.bytes, len(p.mu.lines), p.mu.turns.Len())
	}
}
