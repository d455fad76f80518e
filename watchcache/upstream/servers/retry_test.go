package servers

import (
	"testing"
	"testing/synctest"
	"time"
)

// The pauses grow with each failure, up to the longest one. After a stream that lasted, they begin
// anew.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRetry(newHealth(func() {}))
		after := func(took time.Duration) time.Duration {
			began := time.Now()
			if !r.After(t.Context(), took, nil) {
				t.Fatal("no next attempt")
			}
			return time.Since(began)
		}
		if pause := after(0); pause != 0 {
			t.Errorf("the first pause is %v", pause)
		}
		for range 2 * Reconnect.Steps {
			after(0)
		}
		if pause, longest := after(0), Reconnect.Cap+Reconnect.Cap/2; pause < Reconnect.Cap || pause > longest {
			t.Errorf("the pause is %v, want %v to %v", pause, Reconnect.Cap, longest)
		}
		if pause := after(Steady + 1); pause != 0 {
			t.Errorf("the pause after a steady stream is %v", pause)
		}
	})
}
