package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// A watch continues while its access is confirmed, and ends when it is revoked. While reviews fail,
// it continues for a grace period.
func TestRecheck(t *testing.T) {
	for name, test := range map[string]struct {
		every  time.Duration
		result func(asked int) error
		want   time.Duration // until the watch ends; 0 means never
		slack  time.Duration
	}{
		"confirmed": {time.Minute, func(int) error { return nil }, 0, 0},
		"never":     {0, func(int) error { return exchange.ErrRevoked }, 0, 0},
		"revoked":   {time.Minute, func(int) error { return exchange.ErrRevoked }, 42 * time.Second, 12 * time.Second},
		"revoked later": {time.Minute, func(asked int) error {
			if asked < 3 {
				return nil
			}
			return exchange.ErrRevoked
		}, 126 * time.Second, 36 * time.Second},
		"two of three fail late": {recheckGrace, func(asked int) error {
			if asked%3 == 0 {
				return nil
			}
			time.Sleep(5 * time.Second)
			return errors.New("too many reviews")
		}, 0, 0},
		"reviews fail":       {time.Minute, func(int) error { return errors.New("gone") }, recheckGrace, 10 * time.Second},
		"reviews fail, rare": {20 * time.Minute, func(int) error { return errors.New("gone") }, 20 * time.Minute, recheckRetry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				began := time.Now()
				woken := make(wakes, 1)
				c := newRecheck(test.every, &owner{review: func(context.Context) error {
					asked++
					return test.result(asked)
				}}, woken)
				end := began.Add(time.Hour)
				for time.Now().Before(end) && c.goesOn(t.Context(), time.Now()) {
					select {
					case <-woken:
					case <-time.After(time.Until(c.next(end))):
					}
				}
				c.stop()
				took := time.Since(began)
				if test.want == 0 {
					test.want = time.Hour
				}
				if took > test.want+test.slack || took < test.want-test.slack {
					t.Errorf("ended after %v, want %v", took, test.want)
				}
			})
		})
	}
}

// Watches that were opened together are not reviewed together.
func TestRecheckSpread(t *testing.T) {
	now := time.Now()
	tenths := [10]int{}
	for range 1000 {
		tenths[nextReview(now, time.Minute).Sub(now)/(6*time.Second)]++
	}
	for i, n := range tenths {
		if most := 350; n > most || (n == 0) != (i < 5 || i == 9) {
			t.Fatalf("the tenths of the interval have %v of 1000 reviews", tenths)
		}
	}
}

// wakes receives a value when it is woken.
type wakes chan struct{}

func (w wakes) Wake() { w <- struct{}{} }
