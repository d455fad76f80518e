package table

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// A read that waits for a row first does what it must do before a wait.
func TestWaitsForRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache, initial := cachetest.Roomy(t)
		waits := 0
		r := &Rows{Cache: cache, Context: context.Background(), Wait: time.Second, Slot: (*counted)(&waits)}
		at := initial.ResourceVersion()
		if !r.AwaitLate(at) || waits != 0 {
			t.Errorf("it waits %d times for what is there", waits)
		}
		if r.AwaitLate(at+1) || waits != 1 {
			t.Errorf("it waits %d times for what does not come", waits)
		}
		go func() {
			time.Sleep(time.Millisecond)
			cachetest.Apply(t, cache, cachetest.Sized(t, at+1, 1))
		}()
		if !r.AwaitLate(at+1) || waits != 2 {
			t.Errorf("it has waited %d times for what comes", waits)
		}
	})
}

// counted counts how often a slot is given back.
type counted int

func (c *counted) ReleaseSlot() { *c++ }
