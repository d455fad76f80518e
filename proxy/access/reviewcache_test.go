package access

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

func keyOf(parts ...any) key { return sha256.Sum256([]byte(fmt.Sprint(parts...))) }

// Remembered outcomes stay within the bound. A client that causes more reviews loses its own
// outcomes. Other clients keep their outcomes.
func TestOutcomesAreBounded(t *testing.T) {
	const most, modest, each = 4 << 20, 20, 50
	o := newReviewCache[string](most)
	for u := range modest {
		for i := range each {
			o.put(fmt.Sprint("user", u), keyOf(u, i), "yes", 3, time.Hour)
		}
	}
	const reason = 100 // bytes
	for i := range 3 * most / outcomeCost {
		o.put("greedy", keyOf("greedy", i), "", reason, time.Hour)
		if i%7 == 0 {
			o.get(keyOf("greedy", 0)) // a recent use
		}
		if _, bytes := o.held(); bytes > most {
			t.Fatalf("%d bytes are held", bytes)
		}
	}
	for u := range modest {
		for i := range each {
			if _, _, ok := o.get(keyOf(u, i)); !ok {
				t.Fatalf("outcome %d of user %d was pushed out by another's", i, u)
			}
		}
	}
	if _, _, ok := o.get(keyOf("greedy", 0)); !ok {
		t.Error("what was used most was pushed out first")
	}
	if _, _, ok := o.get(keyOf("greedy", 1)); ok {
		t.Error("what was never used is still there")
	}
	o.put("greedy", keyOf("huge"), "", most/outcomeShare, time.Hour)
	if _, _, ok := o.get(keyOf("huge")); ok {
		t.Error("one outcome takes a large part of the whole")
	}
}

// An outcome is valid for its TTL. Its memory is freed soon after. A new outcome that is not
// remembered still removes the previous one.
func TestOutcomesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newReviewCache[int](1 << 20)
		o.put("u", keyOf("short"), 1, 0, time.Minute)
		o.put("u", keyOf("long"), 2, 0, time.Hour)
		o.put("v", keyOf("none"), 3, 0, 0)
		o.put("u", keyOf("replaced"), 4, 0, time.Hour)
		o.put("u", keyOf("replaced"), 5, 0, 0)
		if v, _, ok := o.get(keyOf("replaced")); ok {
			t.Errorf("still %d", v)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if v, _, ok := o.get(keyOf("short")); v != 1 || !ok {
			t.Error("it has expired too soon")
		}
		time.Sleep(time.Nanosecond)
		if _, _, ok := o.get(keyOf("short")); ok {
			t.Error("it has not expired")
		}
		time.Sleep(sweepPause)
		synctest.Wait()
		if count, bytes := o.held(); count != 1 || bytes != outcomeCost+holderCost {
			t.Errorf("%d outcomes take %d bytes", count, bytes)
		}
		if v, _, ok := o.get(keyOf("long")); v != 2 || !ok {
			t.Error("another has expired, too")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if count, bytes := o.held(); count != 0 || bytes != 0 || len(o.mu.holders) != 0 || o.mu.sweeping {
			t.Errorf("%d outcomes and %d holders take %d bytes", count, len(o.mu.holders), bytes)
		}
	})
}

// An outcome expires while the machine sleeps, too.
func TestOutcomesExpireInSleep(t *testing.T) {
	for sleep, want := range map[time.Duration]bool{0: true, time.Hour: false} {
		o := newReviewCache[string](1 << 20)
		k := keyOf("a", 1)
		o.put("a", k, "allowed", 1, time.Minute)
		o.mu.found[k].until = cachetest.BeforeSleep(sleep).Add(time.Minute)
		if _, _, ok := o.get(k); ok != want {
			t.Errorf("after a sleep of %v it is remembered: %t", sleep, ok)
		}
	}
}

// held returns the number of outcomes and their bytes.
func (o *reviewCache[V]) held() (count, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.found), o.mu.bytes
}
