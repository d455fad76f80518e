//go:build !race

package grants

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// The race detector of Go 1.26 crashes in these tests, in its own code, when bubbles with many goroutines
// end.

// Idle watches cost nothing: those of one user and collection share their looks and goroutines, and none
// is woken.
func TestIdleWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const watches, namespaces, may = 3000, 100, 40
		names := numbered(namespaces)
		u := newUpstream(names...)
		u.grant(true, names[:may]...)
		s := NewEras()
		before := runtime.NumGoroutine()
		all := make([]*watcher, watches)
		for i := range all {
			all[i] = u.opens(t, s, Key{}, names[:may]...)
		}
		if n := runtime.NumGoroutine() - before; n > 2 {
			t.Errorf("%d goroutines", n)
		}
		u.count()
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		if n, most := u.count(), minutes*namespaces*int(time.Minute/denyTTL); n > most || n < most*9/10 {
			t.Errorf("%d questions in %d minutes, want %d", n, minutes, most)
		}
		for _, w := range all {
			if w.woken.Load() > 0 || w.Over() {
				t.Fatalf("woken %d times, over %t", w.woken.Load(), w.Over())
			}
			w.close()
		}
		if len(s.mu.open) > 0 || len(s.mu.users) > 0 || s.mu.known != 0 {
			t.Errorf("without watches: %d eras, %d decisions, %v", len(s.mu.open), s.mu.known, s.mu.users)
		}
	})
}

// Eras look at their decisions at a limited rate, whatever their number.
func TestLookRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const eras, namespaces, seconds = 20, 1000, 60
		names := numbered(namespaces)
		u := newUpstream(names...)
		u.grant(true, names...)
		s := NewEras()
		for i := range eras {
			u.opens(t, s, Key{User: "u", Question: [32]byte{byte(i)}}, names...)
		}
		time.Sleep(denyTTL)
		u.count()
		time.Sleep(seconds * time.Second)
		if n := u.count(); n > (seconds+2)*lookRate {
			t.Errorf("%d questions in %d s", n, seconds)
		}
	})
}

// A user's watches have half of the decisions that others leave. Beyond it, they are refused before
// anything is asked. Other watches stay, and others' have room.
func TestTooManyDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, fit = 10_000, knownMost / 2 / (10_000 + eraCost)
		names := numbered(each)
		u, s := newUpstream(names...), NewEras()
		var all []*Watch
		open := func(user string, i int, names []string) error {
			w, err := s.Open(t.Context(), Key{User: user, Question: [32]byte{byte(i)}}, u, names)
			if err == nil {
				all = append(all, w)
			}
			return err
		}
		fill := func(user string) (n int) {
			for open(user, n, names) == nil {
				n++
			}
			return n
		}
		if n := fill("u"); n != fit {
			t.Errorf("a user has %d eras instead of %d", n, fit)
		}
		u.count()
		if err := open("u", fit, names); !errors.Is(err, ErrTooMany) || u.count() > 0 {
			t.Errorf("error %v after %d questions", err, u.count())
		}
		all[0].Close()
		if err := open("u", fit, names); err != nil {
			t.Errorf("after the end of a watch: %v", err)
		}
		const rest = knownMost/2 - fit*(each+eraCost) - eraCost
		if err := open("u", fit+1, names[:rest]); err != nil {
			t.Error(err)
		}
		all[1].Ask("one more") // an era at the limit ends
		synctest.Wait()
		if !all[1].Over() || all[2].Over() {
			t.Errorf("over %t, another era %t", all[1].Over(), all[2].Over())
		}
		fill("v")
		fill("w")
		if err := open("last", 0, names); err != nil {
			t.Errorf("after three users with many: %v", err)
		}
		for _, w := range all[1:] {
			w.Close()
		}
		if len(s.mu.users) != 0 || s.mu.known != 0 {
			t.Errorf("counted without watches: %d, %v", s.mu.known, s.mu.users)
		}
	})
}
