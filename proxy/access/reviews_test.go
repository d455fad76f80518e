package access

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A client that floods upstream with reviews gets half of the slots. The next slot goes to another
// client. When the waiting reviews hold too many bytes, the flooding client's own reviews are
// refused.
func TestFloodOfReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = time.Second
		r := newReviews[bool]()
		asks := func(of string, i, bytes int) <-chan error {
			done := make(chan error, 1)
			at := place{keyOf(of, fmt.Sprint(i)), r.turns, of, bytes}
			results := r.begin(at, func(context.Context) (bool, error) {
				time.Sleep(takes)
				return true, nil
			})
			go func() { done <- (<-results).Err }()
			return done
		}
		flood := make([]<-chan error, 100)
		for i := range flood {
			flood[i] = asks("greedy", i, waitingMax/64)
		}
		synctest.Wait()
		if n := r.turns.slots.Taken(); n != reviewsMax/2 {
			t.Errorf("a client has %d of %d slots", n, reviewsMax)
		}
		began := time.Now()
		if err := <-asks("modest", 0, waitingMax/2); err != nil || time.Since(began) > takes {
			t.Errorf("another client waited for %v: %v", time.Since(began), err)
		}
		refused := 0
		for _, one := range flood {
			if <-one != nil {
				refused++
			}
		}
		if most := len(flood) - reviewsMax/2; refused == 0 || refused > most {
			t.Errorf("%d of %d questions were refused", refused, len(flood))
		}
	})
}

// A review whose turn comes late does not begin, because it might not end in time.
func TestLateReviewsDoNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReviews[bool]()
		begin := func(of string, takes time.Duration) (begun *bool, done <-chan error) {
			begun, ended := new(bool), make(chan error, 1)
			at := place{keyOf(of), r.turns, of, 0}
			results := r.begin(at, func(context.Context) (bool, error) {
				*begun = true
				time.Sleep(takes)
				return true, nil
			})
			go func() { ended <- (<-results).Err }()
			return begun, ended
		}
		const more = time.Second
		for i := range reviewsMax {
			begin(fmt.Sprint("user", i), turnTimeout+more)
		}
		synctest.Wait()
		began := time.Now()
		begun, done := begin("late", 0)
		if err := <-done; err == nil || *begun || time.Since(began) != turnTimeout {
			t.Errorf("after %v: begun %t, %v", time.Since(began), *begun, err)
		}
		time.Sleep(more)
	})
}

// Reviews of strangers that wait take no memory from those of tokens that were good before. A review without
// memory is unavailable, and not a refusal.
func TestWaitingStrangersLeaveRoomForOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := newTokens(nil, time.Minute)
		strangers := token.reviews.turns
		for i := range 2 {
			if !strangers.waiting.Try(fmt.Sprint("network", i), waitingMax/2) {
				t.Fatal("no room")
			}
		}
		if err := token.owners.wait(t.Context(), "honest", waitCost); err != nil {
			t.Errorf("an owner's review: %v", err)
		}
		if err := strangers.wait(t.Context(), "network2", waitCost); !isUnavailable(err) {
			t.Errorf("a stranger's review: %v", err)
		}
	})
}
