package issuer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// While the proxy runs, a machine may set its clock or sleep. Then Go's monotonic clock and the
// expiry of a certificate differ. So renewals follow the wall clock.
func TestRenewalFollowsTheWallClock(t *testing.T) {
	i, err := newWorld().start(t)
	if err != nil {
		t.Fatal(err)
	}
	if at := i.mu.serving.renew; at != at.Round(0) {
		t.Errorf("the renewal at %v is by the monotonic clock", at)
	}
}

// A certificate is due after two thirds of its validity. It is also due if the clock was set back
// to a time before it was made.
func TestDue(t *testing.T) {
	made := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &pair{made: made, renew: made.Add(20 * 24 * time.Hour)}
	for after, want := range map[time.Duration]bool{-time.Second: true, 0: false, 19 * 24 * time.Hour: false, 20 * 24 * time.Hour: true} {
		if p.isDue(made.Add(after)) != want {
			t.Errorf("after %v it is due: %v", after, !want)
		}
	}
}

// A repeated action pauses for less time after a failure. The log has one line when it begins to
// fail, and one when it works again.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		ctx, cancel := context.WithCancel(t.Context())
		began, results := time.Now(), []bool{true, false, false, true, true, false}
		var at []time.Duration
		s := &served{log: zap.New(core)}
		s.repeat(ctx, func(context.Context) error {
			ok := results[len(at)]
			if at = append(at, time.Since(began)); len(at) == len(results) {
				cancel() // a failure because of the end is not logged
			}
			if !ok {
				return errors.New("down")
			}
			return nil
		}, func(failing bool) time.Duration {
			if failing {
				return time.Second
			}
			return time.Minute
		}, "fails", "works")
		const m, sec = time.Minute, time.Second
		if want := []time.Duration{m, 2 * m, 2*m + sec, 2*m + 2*sec, 3*m + 2*sec, 4*m + 2*sec}; !slices.Equal(at, want) {
			t.Errorf("at %v instead of %v", at, want)
		}
		var lines []string
		for _, l := range logs.All() {
			lines = append(lines, l.Message)
		}
		if want := []string{"fails", "works"}; !slices.Equal(lines, want) {
			t.Errorf("the log says %v instead of %v", lines, want)
		}
	})
}

// While the CA cannot be checked, the attempts come soon one after the other.
func TestAttemptsAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		i, err := w.start(t)
		if err != nil {
			t.Fatal(err)
		}
		w.fail(errors.New("down"))
		defer inBackground(i)()
		reads := func() (n int) {
			w.locked(func() { n = w.secretReads })
			return n
		}
		time.Sleep(interval * 2)
		const times = 5
		before := reads()
		time.Sleep(times*soon + time.Second)
		if n := reads() - before; n < times || n > times+1 {
			t.Errorf("%d attempts in %v", n, times*soon)
		}
	})
}
