package proxy

import (
	"testing"
	"testing/synctest"
	"time"
)

// Stale reads wait for a slot. Watches have separate slots. No slot is given back twice.
func TestStaleSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFallbackLimiter(1, 1)
		list, refusal := s.admit(t.Context(), "list")
		if refusal != nil {
			t.Fatal("refused, and there was room")
		}
		watch, refusal := s.admit(t.Context(), "watch")
		if refusal != nil {
			t.Fatal("a list took the slot of a watch")
		}
		began := time.Now()
		if _, refusal := s.admit(t.Context(), "get"); refusal == nil || time.Since(began) != fallbackWait || refusal.Status != 429 {
			t.Errorf("%v after %s", refusal, time.Since(began))
		}
		time.AfterFunc(time.Second, list)
		if again, refusal := s.admit(t.Context(), "get"); refusal != nil {
			t.Error("refused, and a slot became free")
		} else {
			again()
		}
		list()
		watch()
		watch()
		if len(s.reads)+len(s.watches) != 0 {
			t.Errorf("%d and %d slots are left over", len(s.reads), len(s.watches))
		}
	})
}
