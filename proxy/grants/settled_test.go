package grants

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A set is settled after the longest time for which a denial may count, and the time that reviews and
// other replicas may take.
func TestSettled(t *testing.T) {
	const others = 150 * time.Second
	for _, test := range []struct{ allowTTL, denyTTL, want time.Duration }{
		{time.Minute, time.Second, 61*time.Second + others},
		{time.Minute, 10 * time.Minute, 11*time.Minute + others},
		{10 * time.Minute, time.Second, 10*time.Minute + others},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("a")
			u.grant(true, both, "a")
			g := u.of(NewBook(), Key{})
			known := func(at uint64) bool {
				q := u.past(at)
				q.AllowTTL, q.DenyTTL = test.allowTTL, test.denyTTL
				return settle(t, g, q).Known
			}
			known(100)
			u.newest = 200
			time.Sleep(test.want)
			before := known(201)
			time.Sleep(time.Nanosecond)
			if after := known(202); before || !after {
				t.Errorf("%+v: settled before it: %t, after it: %t", test, before, after)
			}
		})
	}
}

// A set is not settled while another replica may show a smaller one, because a denial counts there.
func TestDeniedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const longer = 10 * allowTTL
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		one, two := u.of(NewBook(), Key{}), u.of(NewBook(), Key{})
		see := func(g *Grants, q Query) Seen {
			t.Helper()
			q.DenyTTL = longer
			return settle(t, g, q)
		}
		see(two, u.query(false, 100))
		u.grant(true, both, "b")
		see(one, u.query(false, 100))
		for at := uint64(110); ; at += 10 {
			time.Sleep(replicasLag / 2)
			u.newest = at
			shown := see(two, u.query(false, at)).Namespaces
			if len(shown) == 2 {
				break
			}
			if seen := see(one, u.past(at)); seen.Known {
				t.Fatalf("at %d replicas have shown %v and %v", at, shown, seen.Namespaces)
			}
		}
		time.Sleep(settled(longer))
		u.newest = 1000
		see(one, u.query(false, 1000))
		if seen := see(one, u.past(1001)); !seen.Known {
			t.Error("no replica shows anything else")
		}
	})
}

// A denial is not shown long after its time.
func TestOldDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("a", "b")
		u.grant(true, both, "a")
		g := u.of(NewBook(), Key{})
		settle(t, g, u.query(false, 100))
		broken := errors.New("broken")
		u.err = func(_, namespace string) error {
			if namespace == "b" {
				return broken
			}
			return nil
		}
		time.Sleep(denyTTL + overdueMost - tick)
		wantSeen(t, settle(t, g, u.query(false, 100)), 100, "a")
		time.Sleep(tick)
		if seen, err := g.Settle(t.Context(), u.query(false, 100)); !errors.Is(err, broken) {
			t.Errorf("saw %v, %v", seen.Namespaces, err)
		}
	})
}
