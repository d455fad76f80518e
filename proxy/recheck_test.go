package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A watch goes on while its right is confirmed, ends when it is revoked, and goes on for
// a grace while nobody can tell.
func TestRecheck(t *testing.T) {
	for name, test := range map[string]struct {
		every   time.Duration
		verdict func(asked int) error
		want    time.Duration // until it ends, 0 for never
		slack   time.Duration
	}{
		"confirmed": {time.Minute, func(int) error { return nil }, 0, 0},
		"never":     {0, func(int) error { return errRevoked }, 0, 0},
		"revoked":   {time.Minute, func(int) error { return errRevoked }, time.Minute, 6 * time.Second},
		"revoked later": {time.Minute, func(asked int) error {
			if asked < 3 {
				return nil
			}
			return errRevoked
		}, 3 * time.Minute, 18 * time.Second},
		"nobody can tell":      {time.Minute, func(int) error { return errors.New("gone") }, recheckGrace, 10 * time.Second},
		"nobody can tell, yet": {20 * time.Minute, func(int) error { return errors.New("gone") }, 20 * time.Minute, recheckRetry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				began := time.Now()
				c := newRecheck(test.every, func(context.Context) error {
					asked++
					return test.verdict(asked)
				})
				end := began.Add(time.Hour)
				for time.Now().Before(end) {
					c.begin(t.Context())
					select {
					case verdict := <-c.verdict:
						if !c.end(verdict) {
							end = time.Now()
						}
					case <-time.After(time.Until(c.next(end))):
					}
				}
				c.wait()
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
