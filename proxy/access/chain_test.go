package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	certificates "crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/request/x509"
)

// identity is a certificate with its key.
type identity struct {
	*certificates.Certificate
	key *ecdsa.PrivateKey
}

// issue returns a certificate that is valid from an instant to another. A nil issuer makes it
// self-signed.
func issue(t *testing.T, issuer *identity, name string, from, until time.Time) *identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &certificates.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: certificates.KeyUsageCertSign,
		ExtKeyUsage: []certificates.ExtKeyUsage{certificates.ExtKeyUsageClientAuth},
	}
	if issuer == nil {
		issuer = &identity{template, key}
	}
	raw, err := certificates.CreateCertificate(rand.Reader, template, issuer.Certificate, key.Public(), issuer.key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := certificates.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &identity{parsed, key}
}

// trial counts verifications that reach a root.
type trial struct {
	*chainAuthenticator
	pool *certificates.CertPool

	mu       sync.Mutex
	verified []string                  // the names of the verified certificates
	judge    func(client string) error // called in each verification
}

func newChainTrial(t *testing.T, root *identity) *trial {
	t.Helper()
	w := &trial{judge: func(string) error { return nil }}
	w.chainAuthenticator = newChains(func() (certificates.VerifyOptions, bool) {
		return certificates.VerifyOptions{Roots: w.pool, KeyUsages: []certificates.ExtKeyUsage{certificates.ExtKeyUsageClientAuth}}, w.pool != nil
	}, x509.CommonNameUserConversion)
	w.trust(root)
	return w
}

func (w *trial) trust(root *identity) {
	w.pool = certificates.NewCertPool()
	w.pool.AddCertWithConstraint(root.Certificate, func(chain []*certificates.Certificate) error {
		w.mu.Lock()
		w.verified = append(w.verified, chain[0].Subject.CommonName)
		judge := w.judge
		w.mu.Unlock()
		return judge(chain[0].Subject.CommonName)
	})
}

func connection(sent ...*identity) *tls.ConnectionState {
	state := &tls.ConnectionState{}
	for _, c := range sent {
		state.PeerCertificates = append(state.PeerCertificates, c.Certificate)
	}
	return state
}

// ask sends a request and returns the user.
func (w *trial) ask(ctx context.Context, state *tls.ConnectionState, address string) (string, error) {
	resp, ok, err := w.AuthenticateRequest((&http.Request{TLS: state, RemoteAddr: address}).WithContext(ctx))
	if !ok {
		return "", err
	}
	return resp.User.GetName(), err
}

func (w *trial) expect(t *testing.T, state *tls.ConnectionState, user string, verifications int) {
	t.Helper()
	got, err := w.ask(t.Context(), state, "")
	if got != user || user != "" && err != nil || len(w.verified) != verifications {
		t.Errorf("%q, %v after %d verifications; want %q after %d", got, err, len(w.verified), user, verifications)
	}
}

// The requests of a connection share one verification, whether it succeeds or not (invariant 3). A
// refusal holds for a minute (invariant 2).
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		root := issue(t, nil, "root", now, now.Add(time.Hour))
		client := issue(t, root, "client", now, now.Add(time.Hour))
		for i, refused := range []error{nil, errors.New("refused")} {
			w := newChainTrial(t, root)
			w.judge = func(string) error {
				time.Sleep(time.Second) // the other requests arrive
				return refused
			}
			for n, state := range []*tls.ConnectionState{connection(client), connection(client)} {
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						if user, err := w.ask(t.Context(), state, ""); (user == "client") != (refused == nil) || (err == nil) != (refused == nil) {
							t.Errorf("%d: %q, %v", i, user, err)
						}
					})
				}
				all.Wait()
				if len(w.verified) != n+1 {
					t.Errorf("%d verifications of %d connections", len(w.verified), n+1)
				}
			}
			state := connection(client)
			for range 60 {
				_, _ = w.ask(t.Context(), state, "")
				time.Sleep(time.Second)
			}
			if want := map[bool]int{true: 3, false: 4}[refused == nil]; len(w.verified) != want {
				t.Errorf("%d verifications after a minute, want %d", len(w.verified), want)
			}
		}
	})
}

// A result changes with the time of the certificates, of the root, too (invariant 2). A request
// whose certificate is not valid yet is accepted as soon as it is.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		root := issue(t, nil, "root", now, now.Add(time.Hour))
		soon := connection(issue(t, root, "client", now.Add(10*time.Second), now.Add(time.Minute)))
		outlives := connection(issue(t, root, "client", now, now.Add(2*time.Hour)))
		w := newChainTrial(t, root)
		w.expect(t, soon, "", 0)
		w.expect(t, outlives, "client", 1)
		time.Sleep(10 * time.Second)
		w.expect(t, soon, "client", 2)
		time.Sleep(50*time.Second - 1)
		w.expect(t, soon, "client", 2)
		time.Sleep(time.Second)
		w.expect(t, soon, "", 2)
		time.Sleep(58 * time.Minute)
		w.expect(t, outlives, "client", 2)
		time.Sleep(time.Minute)
		w.expect(t, outlives, "", 2)
	})
}

// A result does not hold for other roots, nor before any of its certificates became valid
// (invariants 1 and 2).
func TestRoots(t *testing.T) {
	now := time.Now()
	root, other := issue(t, nil, "root", now.Add(-time.Hour), now.Add(time.Hour)), issue(t, nil, "root", now, now.Add(time.Hour))
	state := connection(issue(t, root, "client", now, now.Add(time.Hour)))
	w := newChainTrial(t, root)
	w.expect(t, state, "client", 1)
	w.trust(other)
	w.expect(t, state, "", 1)
	w.trust(root)
	w.expect(t, state, "client", 2)
	w.pool = nil // the authorities are unknown
	w.expect(t, state, "", 2)
	if r := w.result(state); r.from.Before(now.Truncate(time.Second)) {
		t.Errorf("the result holds from %s, before the certificate is valid", r.from)
	}
}

// A chain of eleven certificates is not verified.
func TestLength(t *testing.T) {
	from, until := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	issuers := []*identity{issue(t, nil, "0", from, until)}
	w := newChainTrial(t, issuers[0])
	for i := range chainMost {
		issuers = slices.Insert(issuers, 0, issue(t, issuers[0], fmt.Sprint(i+1), from, until))
	}
	w.expect(t, connection(issuers[:chainMost]...), fmt.Sprint(chainMost), 1)
	if user, err := w.ask(t.Context(), connection(issuers...), ""); user != "" || !errors.Is(err, errTooLong) || len(w.verified) != 1 {
		t.Errorf("%q, %v, %d verifications", user, err, len(w.verified))
	}
}

// A request waits for its turn for chainWait, and so does another one of its connection.
func TestPatienceOfTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		root := issue(t, nil, "root", now, now.Add(time.Hour))
		middle := issue(t, root, "middle", now, now.Add(time.Hour))
		w := newChainTrial(t, root)
		stop := make(chan struct{})
		w.judge = func(string) error {
			<-stop
			return nil
		}
		var all sync.WaitGroup
		slow, late := connection(issue(t, middle, "slow", now, now.Add(time.Hour)), middle), connection(issue(t, middle, "late", now, now.Add(time.Hour)), middle)
		all.Go(func() { _, _ = w.ask(t.Context(), slow, "one") })
		synctest.Wait()
		for _, state := range []*tls.ConnectionState{slow, late, late} {
			all.Go(func() {
				began := time.Now()
				if got, err := w.ask(t.Context(), state, "another"); got != "" || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != chainWait {
					t.Errorf("%q, %v after %v", got, err, time.Since(began))
				}
			})
		}
		time.Sleep(2 * chainWait)
		close(stop)
		all.Wait()
	})
}

// One long chain is verified at a time. Clients take turns, and single certificates do not wait
// (invariant 5). A request that gives up does not keep its connection from another attempt.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		root := issue(t, nil, "root", now, now.Add(time.Hour))
		middle := issue(t, root, "middle", now, now.Add(time.Hour))
		w := newChainTrial(t, root)
		stop := make(chan struct{})
		w.judge = func(client string) error {
			if client != "single" {
				<-stop
			}
			return nil
		}
		var all sync.WaitGroup
		states := map[string]*tls.ConnectionState{}
		for _, name := range []string{"many 1", "many 2", "many 3", "few 1"} {
			state := connection(issue(t, middle, name, now, now.Add(time.Hour)), middle)
			states[name] = state
			all.Go(func() {
				if got, err := w.ask(t.Context(), state, name[:3]); got != name || err != nil {
					t.Errorf("%s: %q, %v", name, got, err)
				}
			})
			synctest.Wait()
		}
		if got, err := w.ask(t.Context(), connection(issue(t, root, "single", now, now.Add(time.Hour))), "many"); got != "single" || err != nil {
			t.Errorf("a single certificate: %q, %v", got, err)
		}
		for _, state := range []*tls.ConnectionState{states["few 1"], connection(issue(t, middle, "gone", now, now.Add(time.Hour)), middle)} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if got, err := w.ask(ctx, state, "few"); got != "" || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a request that gives up: %q, %v", got, err)
			}
			cancel()
		}
		close(stop)
		all.Wait()
		if want := []string{"many 1", "single", "many 2", "few 1", "many 3"}; !slices.Equal(w.verified, want) {
			t.Errorf("verified were %v, want %v", w.verified, want)
		}
	})
}

// Nothing remains of closed connections (invariant 4).
func TestDropped(t *testing.T) {
	now := time.Now()
	root := issue(t, nil, "root", now, now.Add(time.Hour))
	client := issue(t, root, "client", now, now.Add(time.Hour))
	w := newChainTrial(t, root)
	for i := range 100 {
		w.expect(t, connection(client), "client", i+1)
	}
	held := func() (n int) {
		w.states.Range(func(any, any) bool { n++; return true })
		return n
	}
	for deadline := time.Now().Add(time.Minute); held() > 0; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("the results of %d of 100 closed connections are not dropped", held())
		}
	}
}
