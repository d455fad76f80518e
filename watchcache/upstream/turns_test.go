package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// No more feeds than may are at upstream at a time, unless some take long; and nobody who has given up waiting holds a turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(2)
		first, _ := all.wait(t.Context(), idle)
		if _, err := all.wait(t.Context(), idle); err != nil { // it never ends by itself
			t.Fatal(err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := all.wait(impatient, idle); err == nil {
			t.Error("a third has its turn at once")
		}
		began := time.Now()
		time.AfterFunc(time.Second, first)
		third, err := all.wait(t.Context(), idle)
		if err != nil || time.Since(began) != time.Second {
			t.Errorf("the third had its turn after %v, %v", time.Since(began), err)
		}
		fourth, err := all.wait(t.Context(), idle) // when the second has taken too long
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

func idle() urgency { return urgency{} }
