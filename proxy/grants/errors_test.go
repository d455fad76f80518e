package grants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// After an error nothing is shown, but what is known to be revoked ends watches.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b", "c")
		u.grant(true, both, "a", "b")
		g := u.of(NewBook(), Key{})
		watch := settle(t, g, u.query(true, 100))
		broken := errors.New("broken")
		u.objects = []string{"a", "b", "c", "d"}
		u.grant(true, both, "d") // new
		u.grant(false, both, "a")
		u.err = func(_, namespace string) error {
			if namespace == "d" {
				time.Sleep(time.Second) // after the others
				return broken
			}
			return nil
		}
		time.Sleep(allowTTL)
		if _, err := g.Settle(t.Context(), u.query(true, 100)); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
		if now := g.list.now.Load().names; !slices.Equal(now, []string{"b"}) {
			t.Errorf("%v are shown, want b, which was neither revoked nor granted", now)
		}
		u.err = nil
		wantSeen(t, settle(t, g, u.query(true, 100)), 101, "b", "d")
		if !watch.Changed() {
			t.Error("the watch goes on")
		}

		u.err = func(_, namespace string) error {
			if namespace == "" {
				return broken
			}
			return nil
		}
		if seen, err := g.Settle(t.Context(), u.query(false, 100)); !errors.Is(err, broken) || seen.All || seen.Namespaces != nil {
			t.Errorf("%+v, %v", seen, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		u.err = nil
		time.Sleep(time.Hour)
		g.turn <- struct{}{}
		if _, err := g.Settle(ctx, u.query(false, 100)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v of a client that left", err)
		}
		<-g.turn
	})
}

// Reads at the same time share reviews, of which few are upstream at a time.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		u := newUpstream(names...)
		u.delay = time.Millisecond
		u.grant(true, both, names[:10]...)
		g := u.of(NewBook(), Key{})
		var readers sync.WaitGroup
		for range 20 {
			readers.Go(func() { wantSeen(t, settle(t, g, u.query(false, 100)), 100, names[:10]...) })
		}
		readers.Wait()
		if u.most != parallel {
			t.Errorf("%d reviews at a time, want %d", u.most, parallel)
		}
		for _, name := range names {
			if n := u.asked["list "+name]; n != 1 {
				t.Errorf("%s was reviewed %d times", name, n)
			}
		}
	})
}
