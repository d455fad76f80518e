package client

import (
	"testing"
	"testing/synctest"
	"time"
)

// After a stream that lasted, earlier failures cause no pause.
func TestSteadyStreamsEndPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRetry(newHealth(func() {}))
		for i, c := range []struct {
			took   time.Duration
			pauses bool
		}{{0, false}, {0, true}, {0, true}, {Steady + 1, false}} {
			began := time.Now()
			if !r.After(t.Context(), c.took, nil) || time.Since(began) > 0 != c.pauses {
				t.Errorf("attempt %d after a pause of %v", i, time.Since(began))
			}
		}
	})
}
