package servers

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// At most openingMax feeds have a turn at a time, unless some turns are too long. A waiter that has
// given up has no turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(2)
		first, _ := all.Wait(t.Context(), idle)
		if _, err := all.Wait(t.Context(), idle); err != nil { // this turn never ends
			t.Fatal(err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := all.Wait(impatient, idle); err == nil {
			t.Error("a third has its turn at once")
		}
		began := time.Now()
		time.AfterFunc(time.Second, first)
		third, err := all.Wait(t.Context(), idle)
		if err != nil || time.Since(began) != time.Second {
			t.Errorf("the third had its turn after %v, %v", time.Since(began), err)
		}
		fourth, err := all.Wait(t.Context(), idle) // admitted when the second turn is too long
		if took := time.Since(began); err != nil || took > turnMax {
			t.Errorf("the fourth had its turn after %v, %v", took, err)
		}
		first()
		third()
		fourth()
		fourth()
		time.Sleep(2 * turnMax)
		if all.mu.taken != 0 {
			t.Errorf("%d turns go on", all.mu.taken)
		}
	})
}

func idle() Urgency { return Urgency{} }

// While turns is shut, no feed gets a turn. After that, feeds with open watches come first. Among
// these, the most recently read feeds come first.
func TestMostUrgentComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(1)
		all.shut(true)
		var order []Urgency
		var running sync.WaitGroup
		for _, u := range []Urgency{{false, 9}, {true, 1}, {false, 3}, {true, 7}, {false, 5}} {
			running.Go(func() {
				end, err := all.Wait(t.Context(), func() Urgency { return u })
				if err == nil {
					order = append(order, u)
					end()
				}
			})
		}
		left, leave := context.WithCancel(t.Context())
		running.Go(func() {
			if _, err := all.Wait(left, func() Urgency { return Urgency{true, 99} }); err == nil {
				t.Error("somebody who has left has a turn")
			}
		})
		time.Sleep(time.Hour)
		if len(order) > 0 {
			t.Fatalf("%v came while turns were shut", order)
		}
		leave()
		synctest.Wait()
		all.shut(false)
		running.Wait()
		if want := []Urgency{{true, 7}, {true, 1}, {false, 9}, {false, 5}, {false, 3}}; !slices.Equal(order, want) {
			t.Errorf("they came in the order %v, want %v", order, want)
		}
	})
}
