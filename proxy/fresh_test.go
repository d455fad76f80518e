package proxy

import (
	"testing"
	"testing/synctest"
	"time"
)

// Stale reads wait for a place, a watch gives its own back when its state was sent, and nobody gives one back twice.
func TestAdmitStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{stale: make(chan struct{}, 2)}
		admit := func(verb string) (leave func(), ok bool) {
			leave, refusal := s.admitStale(t.Context(), verb)
			return leave, refusal == nil
		}
		list, ok := admit("list")
		watch, alsoOK := admit("watch")
		if !ok || !alsoOK {
			t.Fatal("refused, and there was room")
		}
		began := time.Now()
		if _, ok := admit("list"); ok || time.Since(began) != staleWait {
			t.Errorf("admitted %t after %s", ok, time.Since(began))
		}
		list()
		list()
		if len(s.stale) != 1 {
			t.Errorf("%d places are taken", len(s.stale))
		}
		time.Sleep(staleState)
		if len(s.stale) != 0 {
			t.Errorf("%d places are taken after the time for a watch's state", len(s.stale))
		}
		watch()
		if another, ok := admit("watch"); !ok || len(s.stale) != 1 {
			t.Error("the place of a watch was given back twice")
		} else {
			another()
			another()
		}
		if len(s.stale) != 0 {
			t.Errorf("%d places are left over", len(s.stale))
		}
	})
}
