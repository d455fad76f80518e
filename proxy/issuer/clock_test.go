package issuer

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"testing/synctest"
	"time"
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

// Invariant 1 holds even if the clock of the replica that made the CA was far ahead.
func TestCAOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.store(t, &x509.Certificate{
			Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(24 * time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour),
			KeyUsage: x509.KeyUsageCertSign,
		}, nil)
		i, err := w.start(t)
		if err != nil {
			t.Fatal(err)
		}
		w.verifies(t, i)
	})
}
