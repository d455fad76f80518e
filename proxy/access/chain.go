package access

import (
	"context"
	"crypto/tls"
	certificates "crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"
	"weak"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/x509"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// This file verifies the certificates that clients send, once for each TLS connection. One
// verification may check a hundred signatures: a client can make up authorities that have the name
// of its certificate's issuer and sign each other. Five suffice, and take 80 ms of processor time.
// If each request verified them again, a client without rights would take all processors at a
// hundred requests a second.
//
// Long chains have more than one certificate. A single certificate has few possible issuers, all of
// them the operator's own, and never waits. If the memory of a network is full, its requests with
// long chains get 429.

const (
	// chainMost is the maximum number of certificates that a client may send. Real chains have one
	// to four.
	chainMost = 10
	// chainRefusedTTL limits a refusal, whose roots are unknown: one of them may become valid.
	chainRefusedTTL = time.Minute
	// chainWait limits the wait for a verification.
	chainWait = 10 * time.Second
)

var errTooLong = errors.New("too many certificates")

// chainAuthenticator authenticates requests by the certificates of their connection, with the
// apiserver's own verification.
//
// Invariants:
//
//  1. A result holds only for the roots with which it was found.
//  2. A result holds only until a certificate of the connection or of the chain that was found
//     becomes valid or expires by the wall clock. A refusal holds for chainRefusedTTL at most.
//  3. Requests of one connection share a verification.
//  4. A result does not outlive the state of its connection.
//  5. One long chain is verified at a time. Clients take turns.
type chainAuthenticator struct {
	roots  x509.VerifyOptionFunc
	user   x509.UserConversion
	turns  *fair.Pool
	states sync.Map // from weak.Pointer[tls.ConnectionState] to *result
}

// newChains returns a chainAuthenticator. roots must return a new pool after each change.
func newChains(roots x509.VerifyOptionFunc, user x509.UserConversion) *chainAuthenticator {
	return &chainAuthenticator{
		roots: roots,
		user:  user,
		turns: fair.NewPool(1, false),
	}
}

// AuthenticateRequest implements authenticator.Request. All requests of a connection must have the
// same pointer to its state. After chainWait, the error is that of a deadline.
func (a *chainAuthenticator) AuthenticateRequest(
	req *http.Request,
) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	if n := len(req.TLS.PeerCertificates); n > chainMost {
		return nil, false, fmt.Errorf("%w: %d, at most %d are accepted", errTooLong, n, chainMost)
	}
	r := a.result(req.TLS)
	ctx, cancel := context.WithTimeout(req.Context(), chainWait)
	defer cancel()
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	options, ok := a.roots()
	if !ok {
		return nil, false, nil
	}
	if !r.holds(options.Roots) {
		if len(req.TLS.PeerCertificates) > 1 {
			client := Network(req.RemoteAddr)
			if err := a.turns.Take(ctx, client, 1); err != nil {
				return nil, false, fmt.Errorf("wait for the verification of certificates: %w", err)
			}
			defer a.turns.Give(client, 1)
		}
		r.verify(req, options, a.user)
	}
	return r.response, r.ok, r.err
}

func (a *chainAuthenticator) result(state *tls.ConnectionState) *chainResult {
	key := weak.Make(state)
	if found, ok := a.states.Load(key); ok {
		return found.(*chainResult)
	}
	found, other := a.states.LoadOrStore(key, &chainResult{busy: make(chan struct{}, 1)})
	if !other {
		forget := func(key weak.Pointer[tls.ConnectionState]) { a.states.Delete(key) }
		runtime.AddCleanup(state, forget, key)
	}
	return found.(*chainResult)
}

type chainResult struct {
	busy        chan struct{} // has an element while a request uses the other fields
	roots       *certificates.CertPool
	from, until time.Time // it holds from an instant until just before another
	response    *authenticator.Response
	ok          bool
	err         error
}

// holds reports whether another verification would have the same result.
func (r *chainResult) holds(roots *certificates.CertPool) bool {
	now := time.Now()
	return r.roots == roots && !now.Before(r.from) && now.Before(r.until)
}

func (r *chainResult) verify(
	req *http.Request, options certificates.VerifyOptions, user x509.UserConversion,
) {
	used := req.TLS.PeerCertificates
	convert := func(chain []*certificates.Certificate) (*authenticator.Response, bool, error) {
		used = append(slices.Clip(used), chain...)
		return user.User(chain)
	}
	verification := x509.New(options, x509.UserConversionFunc(convert))
	now := time.Now()
	r.response, r.ok, r.err = verification.AuthenticateRequest(req)
	r.roots, r.from, r.until = options.Roots, time.Time{}, now.Add(chainRefusedTTL)
	if r.ok {
		r.until = used[0].NotAfter
	}
	for _, c := range used {
		// A certificate is still valid at NotAfter.
		for _, change := range [...]time.Time{c.NotBefore, c.NotAfter.Add(1)} {
			switch {
			case change.After(now) && change.Before(r.until):
				r.until = change
			case !change.After(now) && change.After(r.from):
				r.from = change
			}
		}
	}
}
