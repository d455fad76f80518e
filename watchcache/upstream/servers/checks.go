package servers

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// This file checks servers and reports the results to [Health].

const (
	// checkEvery is the interval of checks. After an unanswered check it is checkAgain.
	checkEvery = 3 * time.Second
	checkAgain = 500 * time.Millisecond
	checkRest  = 100 * time.Millisecond // minimum interval, however often checks are requested
	// CheckTimeout bounds a check.
	CheckTimeout = 2 * time.Second
	// awayLeast and awayMost bound the interval of checks while upstream is down. Together, all
	// servers then get at most four requests a second.
	awayLeast = 260 * time.Millisecond
	awayMost  = 340 * time.Millisecond
	// UnreadyPatience is the time for which the proxy believes a server that says it is not ready.
	// If it still answers reads after that, one of its health checks fails permanently.
	UnreadyPatience = 30 * time.Second
)

// Run checks the servers until ctx ends.
func (s *Set) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, one := range s.servers {
		all.Go(func() { s.follow(ctx, one) })
	}
	all.Wait()
}

// follow checks a server periodically, and also when it is suspected.
func (s *Set) follow(ctx context.Context, one *server) {
	next := checkEvery
	if s.alone() {
		next = 0 // nothing has checked it yet
	}
	for {
		select {
		case <-one.check:
		case <-time.After(next):
		case <-ctx.Done():
			return
		}
		raised := s.Health.raised()
		found := s.ask(ctx, one)
		if ctx.Err() != nil {
			return
		}
		s.conclude(one, found, raised)
		client.Sleep(ctx, s.rest())
		next = s.interval(found.err)
	}
}

// rest is the minimum pause after a check, even for a suspected server. While upstream is down,
// servers are checked in turn.
func (s *Set) rest() time.Duration {
	if !s.Health.isAway() {
		return checkRest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = max(s.turn, watchcache.Moment(time.Now())) + int64(awayLeast+rand.N(awayMost-awayLeast))
	return -watchcache.SinceMoment(s.turn)
}

// interval is the time until the next check of a server that is not suspected.
func (s *Set) interval(err error) time.Duration {
	switch {
	case s.Health.isAway():
		return 0
	case client.NoAnswer(err):
		return checkAgain
	case s.alone() && err == nil:
		return math.MaxInt64
	}
	return checkEvery
}

// conclude records a check's result, which settles the doubts that were raised before the check.
func (s *Set) conclude(one *server, found standingAt, raised uint64) {
	asked := s.servers[s.current.Load()]
	s.note(one, found)
	s.mu.Lock()
	now := s.servers[s.current.Load()]
	ready := now.mu.ready && !now.foreign.Load()
	s.mu.Unlock()
	if one != asked && one != now {
		raised = 0 // the check says nothing about the server that is in use
	}
	if s.Health.checked(raised, ready) {
		s.suspect(now)
	}
}

// standingAt is the result of a check.
type standingAt struct {
	cluster string // empty if it cannot be read
	rv      uint64 // 0 if it cannot be read
	before  uint64 // the highest revision of any server before the check
	err     error

	unready  bool // the server said so, or did not answer the question
	silent   bool // no answer at all
	serves   bool // the server answers reads although it is not ready
	readable bool // /readyz was readable
}

// ask checks a server.
func (s *Set) ask(ctx context.Context, one *server) (found standingAt) {
	found.before = s.before()
	within, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	readable, unreadyFor := s.known(one)
	if found.readable, found.err = one.sayReady(within, readable); found.err != nil {
		found.unready, found.silent = true, client.NoAnswer(found.err)
		found.serves = unreadyFor > UnreadyPatience && client.Sleep(ctx, s.rest()) && one.serves(ctx, readable)
		return found
	}
	if s.alone() {
		return found
	}
	if found.cluster, found.err = one.client.Cluster(within); found.err != nil {
		return found
	}
	p, err := one.client.Probe(within, "probe", aProbe)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return found
	}
	found.rv, found.err = p.RV, err
	return found
}

// aProbe is a probe of a resource that every cluster has.
var aProbe = &object.Resource{GVR: client.Namespaces, Encoding: object.JSON}

// sayReady asks a server whether it is ready. Any answer except a 5xx counts as yes, because
// /readyz may be missing or forbidden. But if /readyz was readable before, a refusal means that the
// server has just started and does not know the access rules yet.
func (one *server) sayReady(ctx context.Context, readable bool) (read bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, one.Base.JoinPath("readyz").String(), nil)
	if err != nil {
		return false, fmt.Errorf("request /readyz: %w", err)
	}
	req.Header.Set("User-Agent", client.UserAgent)
	resp, err := one.client.HTTP.Do(req)
	if err != nil {
		return false, fmt.Errorf("ask /readyz: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, client.MaxErrorBody))
	refused := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	if resp.StatusCode >= http.StatusInternalServerError || refused && readable {
		return false, fmt.Errorf("/readyz: %s", resp.Status)
	}
	return resp.StatusCode == http.StatusOK, nil
}

// serves sends a read to a server that says it is not ready, or that answers too slowly, and tells
// whether the server answers. A refusal is an answer, too, with two exceptions: the server asks the
// proxy to come back later, or /readyz was readable before, so the server may not know the access
// rules yet.
func (one *server) serves(ctx context.Context, readable bool) bool {
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	_, err := one.client.Probe(ctx, "probe", aProbe)
	if readable && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return false
	}
	return err == nil || !client.Doubtful(err) && !apierrors.IsTooManyRequests(err)
}

// known returns what earlier checks have shown: whether /readyz was readable, and for how long the
// server has not been ready.
func (s *Set) known(one *server) (readable bool, unreadyFor time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !one.mu.unready.IsZero() {
		unreadyFor = time.Since(one.mu.unready)
	}
	return one.mu.readable, unreadyFor
}
