package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	checkEvery = 3 * time.Second
	checkAlone = 10 * time.Second // for a single server that is ready
	// A check is followed by a pause, even if another one is requested: checkRest, or awayRest
	// while upstream is down.
	checkRest = 100 * time.Millisecond
	awayRest  = 300 * time.Millisecond
	// checkTimeout limits a check. A read of a server that is not ready has a limit of its own.
	checkTimeout = 2 * time.Second
	// unreadyPatience limits the time for which a server can be unready and still answer reads.
	// The proxy then treats the server as ready. It assumes a health check of the server that fails
	// permanently.
	unreadyPatience = 30 * time.Second
)

// Run checks the servers until ctx ends.
func (s *Servers) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, one := range s.servers {
		all.Go(func() { s.follow(ctx, one) })
	}
	all.Wait()
}

func (s *Servers) follow(ctx context.Context, one *server) {
	for next := time.Duration(0); ; {
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
		rest := checkRest
		switch {
		case s.Health.isAway():
			rest, next = awayRest, 0
		case s.alone() && found.err == nil:
			next = checkAlone
		default:
			next = checkEvery
		}
		Sleep(ctx, rest)
	}
}

// conclude records the result of a check. If the current server may be used, conclude also resolves
// the doubts that were raised before the check, unless the check concerned another server or had no
// answer.
func (s *Servers) conclude(one *server, found checkResult, raised uint64) {
	before := s.current.Load()
	ready := s.note(one, found)
	now := s.current.Load()
	if found.silent || one != before && one != now {
		raised = 0
	}
	if s.Health.checked(raised, ready) {
		s.suspect(now)
	}
}

type checkResult struct {
	rv      uint64 // 0 if it cannot be read
	before  uint64 // the highest revision of any server before the check
	err     error  // why the server must not be used
	code    int    // the status of /readyz; 0 without a response
	unready bool   // /readyz failed
	serves  bool   // the server answers reads although /readyz has failed for long
	silent  bool   // no response at all, and no refused connection
}

// ask checks a server: its /readyz, and its resourceVersion if there are other servers. If the
// server has been unready for unreadyPatience, ask also reports whether it answers the read.
func (s *Servers) ask(ctx context.Context, one *server) (found checkResult) {
	s.mu.Lock()
	found.before = s.mu.newest
	unready, mute, readable := one.mu.unready, one.mu.mute, one.mu.readable
	s.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found.code, found.err = one.sayReady(within, readable)
	late := !unready.IsZero() && time.Since(unready) > unreadyPatience && mute == (found.code == 0)
	if late && found.code != 0 && found.code < http.StatusInternalServerError {
		found.err = nil // the access rules are loaded, and the proxy lacks the right
	}
	found.unready = found.err != nil
	found.silent = NoAnswer(found.err) && !errors.Is(found.err, syscall.ECONNREFUSED)
	if found.unready && !late || !found.unready && s.alone() {
		return found
	}
	if s.Health.isAway() {
		Sleep(ctx, awayRest)
	}
	if found.unready { // the server may be slow
		within, cancel = context.WithTimeout(ctx, ProbeTimeout)
		defer cancel()
	}
	p, err := one.client.Probe(within, "probe", aProbe)
	refused := apierrors.IsTooManyRequests(err) ||
		apierrors.IsUnauthorized(err) && !s.alone() // another server may accept the credentials
	switch {
	case err == nil || !Doubtful(err) && !refused: // 403 is an answer without a revision
		found.rv, found.serves, found.silent = p.RV, found.unready, false
	case !found.unready:
		found.err = err
	}
	return found
}

var aProbe = &object.Resource{GVR: namespaceResource, Encoding: object.JSON}

// sayReady requests /readyz. It returns the status code, or 0 without a response, and an error if
// the server is not ready. Any response except a 5xx means ready, because /readyz may be missing or
// forbidden. There is an exception: if /readyz was readable before, a refusal means that the server
// has just started and has not loaded the access rules yet.
func (one *server) sayReady(ctx context.Context, readable bool) (code int, err error) {
	url := one.Base.JoinPath("readyz").String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, fmt.Errorf("request /readyz: %w", err)
	}
	req.Header.Set("User-Agent", UserAgent)
	resp, err := one.client.HTTP.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask /readyz: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, MaxErrorBody))
	refused := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	if refused && readable || resp.StatusCode >= http.StatusInternalServerError {
		return resp.StatusCode, fmt.Errorf("/readyz: %s", resp.Status)
	}
	return resp.StatusCode, nil
}
