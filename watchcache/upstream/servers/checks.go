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

// This file checks servers: when, how, and what feeds are told of it.

const (
	// checkEvery is how often servers are checked, checkAgain how soon after one did not answer.
	checkEvery = 3 * time.Second
	checkAgain = 500 * time.Millisecond
	checkRest  = 100 * time.Millisecond // between two checks, however often they are asked for
	// CheckTimeout is how long a server may take to answer a check.
	CheckTimeout = 2 * time.Second
	// awayLeast and awayMost are how far apart checks are while upstream is away: it is asked no
	// more than four times a second, all servers together.
	awayLeast = 260 * time.Millisecond
	awayMost  = 340 * time.Millisecond
	// UnreadyPatience is how long a server that says it is not ready is believed. One that answers
	// reads after that has a health check which fails for ever.
	UnreadyPatience = 30 * time.Second
)

// Run follows how the servers are until ctx ends.
func (s *Set) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, one := range s.servers {
		all.Go(func() { s.follow(ctx, one) })
	}
	all.Wait()
}

// follow checks a server now and then, and when it is suspected.
func (s *Set) follow(ctx context.Context, one *server) {
	next := checkEvery
	if s.alone() {
		next = 0 // it was not checked yet
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

// rest is how long a server is left alone after a check, whoever suspects it. While upstream is away
// servers are checked by turns.
func (s *Set) rest() time.Duration {
	if !s.Health.isAway() {
		return checkRest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = max(s.turn, watchcache.Moment(time.Now())) + int64(awayLeast+rand.N(awayMost-awayLeast))
	return -watchcache.SinceMoment(s.turn)
}

// interval is when a server that nobody suspects is checked after that.
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

// conclude notes what a check found, and what it says to the doubts that were raised before it.
func (s *Set) conclude(one *server, found standingAt, raised uint64) {
	asked := s.servers[s.current.Load()]
	s.note(one, found)
	s.mu.Lock()
	now := s.servers[s.current.Load()]
	ready := now.mu.ready && !now.foreign.Load()
	s.mu.Unlock()
	if one != asked && one != now {
		raised = 0 // it says nothing about the server that feeds ask
	}
	if s.Health.checked(raised, ready) {
		s.suspect(now)
	}
}

// standingAt is what a check found.
type standingAt struct {
	cluster string // empty if it may not be read
	rv      uint64 // 0 if it may not be read
	before  uint64 // what one of them had told when it was asked
	err     error

	unready  bool // by its own word, or because it said nothing
	silent   bool // it said nothing whatsoever
	serves   bool // all the same
	readable bool // its word could be read
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
	p, err := one.client.Probe(within, aProbe)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return found
	}
	found.rv, found.err = p.RV, err
	return found
}

// aProbe is of a resource that every cluster has.
var aProbe = &object.Resource{GVR: client.Namespaces, Encoding: object.JSON}

// sayReady asks a server whether it wants to be asked. Any answer but a 5xx says so: /readyz need not
// be there, nor be for everybody to read. But where it was readable before, a refusal means that a
// server which has just started does not know yet who may read what.
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

// serves asks a server that is not ready by its own word, or slow to say so, for something. A
// refusal is an answer, too, unless it asks to come back later, or the server has told more before
// and may not know yet who may read what.
func (one *server) serves(ctx context.Context, readable bool) bool {
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	_, err := one.client.Probe(ctx, aProbe)
	if readable && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return false
	}
	return err == nil || !client.Doubtful(err) && !apierrors.IsTooManyRequests(err)
}

// known is what a server has said before: whether /readyz could be read, and for how long it has not
// been ready.
func (s *Set) known(one *server) (readable bool, unreadyFor time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !one.mu.unready.IsZero() {
		unreadyFor = time.Since(one.mu.unready)
	}
	return one.mu.readable, unreadyFor
}
