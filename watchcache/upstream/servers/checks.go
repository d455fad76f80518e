package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// checkEvery is the interval of checks if there are several servers, or if a single server is
	// not ready. checkAgain is the interval of checks of a server that does not answer.
	checkEvery = 3 * time.Second
	checkAgain = 500 * time.Millisecond
	checkRest  = 100 * time.Millisecond // minimum interval, even if many checks are requested
	// checkAlone is the interval of checks of a single server that is ready. A busy server may
	// leave a check unanswered. So unless a feed doubts the server, it counts as lost only after
	// aloneUnanswered unanswered checks in a row, checkEvery apart.
	checkAlone      = 10 * time.Second
	aloneUnanswered = 3
	// CheckTimeout limits a check. The read that may follow has a limit of its own (see serves).
	CheckTimeout = 2 * time.Second
	// While upstream is down, a random time between awayLeast and awayMost separates the beginnings
	// of two checks, also of different servers. So all servers together get at most four checks a
	// second.
	awayLeast = 260 * time.Millisecond
	awayMost  = 340 * time.Millisecond
	// UnreadyPatience limits the time for which a server can be unready and still answer reads.
	// The proxy then treats the server as ready. It assumes a health check of the server that fails
	// permanently.
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

// follow checks a server periodically, and immediately when the server is suspected.
func (s *Set) follow(ctx context.Context, one *server) {
	next := checkEvery
	if s.alone() {
		next = 0 // the server has not been checked yet
	}
	unanswered := 0 // successive unanswered checks
	for {
		suspected := false
		select {
		case <-one.check:
			suspected = true
		case <-time.After(next):
		case <-ctx.Done():
			return
		}
		raised := s.Health.raised()
		found := s.ask(ctx, one)
		if ctx.Err() != nil {
			return
		}
		if unanswered++; !found.silent {
			unanswered = 0
		}
		if s.alone() && found.silent && !suspected && !s.Health.isDoubted() && unanswered < aloneUnanswered {
			next = checkEvery
			continue
		}
		s.conclude(one, found, raised)
		client.Sleep(ctx, s.rest())
		next = s.interval(found.err)
	}
}

// rest returns the pause after a check. Even a suspected server is not checked earlier. While
// upstream is down, each call reserves the next time slot, so that no two checks begin at the same
// time.
func (s *Set) rest() time.Duration {
	if !s.Health.isAway() {
		return checkRest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = max(s.turn, watchcache.Moment(time.Now())) + int64(awayLeast+rand.N(awayMost-awayLeast))
	return -watchcache.SinceMoment(s.turn)
}

// interval returns the time until the next check of a server that is not suspected.
func (s *Set) interval(err error) time.Duration {
	switch {
	case s.Health.isAway():
		return 0
	case client.NoAnswer(err):
		return checkAgain
	case s.alone() && err == nil:
		return checkAlone
	}
	return checkEvery
}

// conclude records the result of a check. If the current server is ready, conclude also resolves
// the doubts that were raised before the check, unless the check concerned another server.
func (s *Set) conclude(one *server, found checkResult, raised uint64) {
	asked := s.servers[s.current.Load()]
	s.note(one, found)
	s.mu.Lock()
	now := s.servers[s.current.Load()]
	ready := now.mu.ready && !now.foreign.Load()
	s.mu.Unlock()
	if one != asked && one != now {
		raised = 0 // the check does not concern the server in use
	}
	if s.Health.checked(raised, ready) {
		s.suspect(now)
	}
}

// checkResult is the result of a check.
type checkResult struct {
	cluster string // empty if it cannot be read
	rv      uint64 // 0 if it cannot be read
	before  uint64 // the highest revision of any server before the check
	err     error

	unready  bool // the server reported that it is not ready, or did not respond
	silent   bool // no response at all
	serves   bool // the server answers reads although it is not ready
	readable bool // /readyz was readable
	code     int  // the status of /readyz; 0 without a response
}

// ask checks a server.
func (s *Set) ask(ctx context.Context, one *server) (found checkResult) {
	s.mu.Lock()
	found.before = s.newest
	late := past(one.mu.unready)
	// A server loads the access rules within seconds after its start. So later refusals mean that
	// the proxy lacks the right.
	readable := one.mu.readable && !past(one.mu.refused)
	s.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	found.code, found.err = one.sayReady(within, readable)
	found.readable = found.code == http.StatusOK
	if found.err != nil {
		found.unready, found.silent = true, client.NoAnswer(found.err)
		found.serves = late && client.Sleep(ctx, s.rest()) && one.serves(ctx, readable)
		return found
	}
	if s.alone() {
		return found
	}
	if found.cluster, found.err = one.client.Cluster(within); found.err != nil {
		return found
	}
	p, err := one.client.Probe(within, "probe", aProbe)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || errors.Is(err, client.ErrAged) {
		return found
	}
	found.rv, found.err = p.RV, err
	return found
}

// aProbe is a probe of a resource that every cluster has.
var aProbe = &object.Resource{GVR: client.Namespaces, Encoding: object.JSON}

// sayReady requests /readyz. It returns the status code, or 0 without a response, and an error if
// the server is not ready. Any response except a 5xx means ready, because /readyz may be missing or
// forbidden. There is an exception: if /readyz was readable before, a refusal means that the server
// has just started and has not loaded the access rules yet.
func (one *server) sayReady(ctx context.Context, readable bool) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, one.Base.JoinPath("readyz").String(), nil)
	if err != nil {
		return 0, fmt.Errorf("request /readyz: %w", err)
	}
	req.Header.Set("User-Agent", client.UserAgent)
	resp, err := one.client.HTTP.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask /readyz: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, client.MaxErrorBody))
	refused := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	switch {
	case refused && readable:
		return resp.StatusCode, fmt.Errorf("/readyz: %w: %s", errRefused, resp.Status)
	case resp.StatusCode >= http.StatusInternalServerError:
		return resp.StatusCode, fmt.Errorf("/readyz: %s", resp.Status)
	}
	return resp.StatusCode, nil
}

// serves sends a read to a server that is not ready or responds too slowly. It reports whether the
// server answers the read. A refusal counts as an answer, with two exceptions: the server asks the
// proxy to come back later, or /readyz was readable before. In the second case, the server may not
// have loaded the access rules yet.
func (one *server) serves(ctx context.Context, readable bool) bool {
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	_, err := one.client.Probe(ctx, "probe", aProbe)
	if readable && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return false
	}
	return err == nil || !client.Doubtful(err) && !apierrors.IsTooManyRequests(err)
}

// past reports whether something has held for longer than UnreadyPatience; since is zero if it does
// not hold.
func past(since time.Time) bool { return !since.IsZero() && time.Since(since) > UnreadyPatience }
