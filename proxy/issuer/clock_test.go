package issuer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// Renewals follow the wall clock, because a machine may set its clock or sleep while the proxy runs. A
// certificate is due after two thirds of its validity, and if the clock was set back to a time before it was
// made.
func TestDue(t *testing.T) {
	i, err := newWorld().start(t)
	if err != nil {
		t.Fatal(err)
	}
	p := i.mu.serving
	for after, want := range map[time.Duration]bool{-time.Second: true, 0: false, 19 * 24 * time.Hour: false, 20 * 24 * time.Hour: true} {
		if p.isDue(p.made.Add(after)) != want || p.renew != p.renew.Round(0) {
			t.Errorf("after %v it is due: %v; the renewal is at %v", after, !want, p.renew)
		}
	}
}

// After a failure, attempts come soon one after the other. The log has one line when they begin to fail, and
// one when they work again.
func TestAttemptsAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		i, err := w.start(t)
		if err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zapcore.InfoLevel)
		i.log = zap.New(core)
		w.fail(errors.New("down"))
		inBackground(t, i)
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
		w.fail(nil)
		time.Sleep(soon + interval*4)
		if n := reads() - before; n < times+2 || n > times+8 {
			t.Errorf("%d attempts in all", n)
		}
		if all := logs.All(); len(all) != 2 || all[0].Level != zap.ErrorLevel || all[1].Level != zap.InfoLevel {
			t.Errorf("the log says %v", all)
		}
	})
}
