package watch

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// A watch continues while its access is confirmed, and ends when it is revoked. While reviews fail,
// it continues for a grace period.
func TestRecheck(t *testing.T) {
	for name, test := range map[string]struct {
		every   time.Duration
		verdict func(asked int) error
		want    time.Duration // until the watch ends; 0 means never
		slack   time.Duration
	}{
		"confirmed": {time.Minute, func(int) error { return nil }, 0, 0},
		"never":     {0, func(int) error { return exchange.ErrRevoked }, 0, 0},
		"revoked":   {time.Minute, func(int) error { return exchange.ErrRevoked }, time.Minute, 6 * time.Second},
		"revoked later": {time.Minute, func(asked int) error {
			if asked < 3 {
				return nil
			}
			return exchange.ErrRevoked
		}, 3 * time.Minute, 18 * time.Second},
		"reviews fail":       {time.Minute, func(int) error { return errors.New("gone") }, recheckGrace, 10 * time.Second},
		"reviews fail, rare": {20 * time.Minute, func(int) error { return errors.New("gone") }, 20 * time.Minute, recheckRetry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				began := time.Now()
				c := newRecheck(test.every, func(context.Context) error {
					asked++
					return test.verdict(asked)
				}, nil)
				end := began.Add(time.Hour)
				woken := make(chan struct{}, 1)
				c.wake = func() { woken <- struct{}{} }
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

// behind is a client that never catches up: while it reads events, the same number of new events
// arrive.
type behind struct {
	t     *testing.T
	cache *watchcache.Cache
	rv    int
}

// Write implements io.Writer.
func (b *behind) Write(p []byte) (int, error) {
	time.Sleep(time.Second)
	if b.rv > 600*deltasMax {
		return 0, io.ErrClosedPipe // ten minutes are enough
	}
	changes := make([]watchcache.Change, deltasMax)
	for i := range changes {
		b.rv++
		changes[i].Object = cachetest.ConfigMap(b.t, 0, b.rv)
	}
	return len(p), b.cache.Apply(changes, time.Now())
}

// A lagging watch never waits for events, but is still reviewed.
func TestRecheckOfLaggingWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, initial := cachetest.ConfigMaps(t, 1)
		p := paramsOf(t, c, initial)
		client := &behind{t, c, int(p.Start)}
		if _, err := client.Write(nil); err != nil {
			t.Fatal(err)
		}
		ended := false
		p.Done, p.Recheck, p.Review = func() { ended = true }, time.Minute, func(context.Context) error { return exchange.ErrRevoked }
		began := time.Now()
		New(p).Run(t.Context(), &exchange.ChunkWriter{To: client})
		if took := time.Since(began); !ended || took > 2*time.Minute {
			t.Errorf("ended: %t, after %v", ended, took)
		}
	})
}
