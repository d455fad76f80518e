package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Server is an apiserver of a cluster.
type Server struct {
	Base      *url.URL          // the path, if any, is prepended to every request path
	Transport http.RoundTripper // adds the proxy's credentials
	// Connections are all connections to the server, such as those of client-go's
	// connrotation.Dialer. A set of one server does not need them.
	Connections interface{ CloseAll() }
}

// Servers is the set of apiservers that share one etcd. It uses one server at a time. If that
// server refuses connections or the proxy's credentials, is not ready or stays silent, the set
// switches to the next usable server. It does not return to the first server, because that would
// break all streams again. The checks also inform all feeds whether upstream can be reached (see
// [Health]).
//
// The resourceVersions of kube-apiserver are etcd's, so a feed whose stream breaks can resume at
// any server. A consistent read of a usable server returns a resourceVersion at least as high as
// all servers' earlier responses to checks. If no server is usable for waitBehind, and one has been
// behind for as long, the set assumes that etcd was restored. It then uses that server, and the
// feeds begin anew. A single server has no such check: the feeds detect the restore themselves.
type Servers struct {
	Health  *Health
	servers []*server
	log     *zap.Logger
	metrics *ServerMetrics
	current atomic.Pointer[server]
	mu      struct {
		sync.Mutex
		newest uint64    // the highest resourceVersion of any server
		lost   time.Time // since when no server is usable; zero if one is
	}
}

type server struct {
	Server
	client *Client
	check  chan struct{} // requests an immediate check

	mu struct { // guarded by Servers.mu
		reason       error     // why the server must not be used; nil if it may be used
		silent       int       // unanswered checks in a row, without refused connections
		behind       time.Time // since when the server has been behind; zero if it is not
		mute         bool      // the last check of /readyz had no response
		unready      time.Time // since when /readyz has failed in this way; zero if it has not
		readable     bool      // /readyz has been readable
		unauthorized bool      // the last answer to a check refused the proxy's credentials
	}
}

var errBehind = errors.New("is behind the others")

const (
	// lostAfter is the number of successive unanswered checks after which a server is left and its
	// connections are cut. A single check may be late under load.
	lostAfter  = 2
	waitBehind = 3 * checkEvery
)

// NewServers checks several servers in parallel, and fails if none of them is usable.
func NewServers(
	ctx context.Context, servers []Server, metrics *ServerMetrics, requests *Metrics,
	log *zap.Logger,
) (*Servers, error) {
	s := &Servers{log: log, metrics: metrics}
	s.Health = newHealth(func() { s.suspect(s.current.Load()) })
	for _, each := range servers {
		one := &server{Server: each, check: make(chan struct{}, 1)}
		one.client = New(each.Base, each.Transport, requests)
		s.metrics.note(one.Base.Host, true)
		s.servers = append(s.servers, one)
	}
	s.current.Store(s.servers[0])
	if s.alone() {
		return s, nil
	}
	for range lostAfter { // a later round compares with the revisions of all servers
		found := make([]checkResult, len(s.servers))
		var all sync.WaitGroup
		for i, one := range s.servers {
			all.Go(func() { found[i] = s.ask(ctx, one) })
		}
		all.Wait()
		for i, one := range s.servers {
			s.note(one, found[i])
		}
	}
	var reasons []error
	for _, one := range s.servers {
		if one.usable() {
			return s, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", one.Base.Host, one.mu.reason))
	}
	return nil, errors.Join(reasons...)
}

// Client returns a client for the current server. transport must come from [Servers.Transport].
func (s *Servers) Client(transport http.RoundTripper, requests *Metrics) *Client {
	return New(s.servers[0].Base, transport, requests)
}

func (s *Servers) alone() bool { return len(s.servers) == 1 }

// Current returns the address of the current server, as host:port.
func (s *Servers) Current() string { return s.current.Load().Base.Host }

func (s *Servers) suspect(one *server) {
	select {
	case one.check <- struct{}{}:
	default:
	}
}

// failed records that a request to a server failed. If the server accepted a connection, the
// failure may be the proxy's own, for example an unreadable key, so the check decides.
func (s *Servers) failed(one *server, err error) {
	s.suspect(one)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.judge(one, err)
	}
}

// note applies a check's result. It reports whether the current server may be used.
func (s *Servers) note(one *server, found checkResult) (ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.mu.silent++
	if !found.silent {
		one.mu.silent = 0
	}
	if found.code != 0 || found.serves {
		s.metrics.answered(one.Base.Host)
	}
	mute := found.code == 0
	switch {
	case !found.unready:
		one.mu.unready = time.Time{}
		one.mu.readable = found.code == http.StatusOK
	case one.mu.unready.IsZero(), one.mu.mute != mute: // it may have started again
		one.mu.unready = time.Now()
	}
	one.mu.mute = mute
	// A balancer may have written a 5xx.
	if found.code != 0 && found.code < http.StatusInternalServerError {
		s.noteCredentials(one, found.code == http.StatusUnauthorized)
	}
	if !found.silent || one.mu.silent >= lostAfter {
		s.judge(one, s.reasonLocked(one, found))
	}
	now := s.current.Load()
	bad := one.mu.silent >= lostAfter || errors.Is(one.mu.reason, errBehind)
	if bad && now != one && now.usable() && now.mu.silent == 0 {
		one.Connections.CloseAll() // but not if the network of all servers fails
	}
	return now.usable()
}

// reasonLocked returns why a server must not be used, or nil. A server that is not ready and still
// serves may be used only if no other server is ready.
func (s *Servers) reasonLocked(one *server, found checkResult) error {
	behind := one.mu.behind
	one.mu.behind = time.Time{}
	ready := func(one *server) bool { return one.usable() && one.mu.unready.IsZero() }
	if found.err != nil && (!found.serves || slices.ContainsFunc(s.servers, ready)) {
		return found.err
	}
	if found.rv < found.before && found.rv != 0 && !s.alone() {
		if one.mu.behind = behind; behind.IsZero() {
			one.mu.behind = time.Now()
		}
		reason := fmt.Errorf("%w: at %d, they were at %d", errBehind, found.rv, found.before)
		since := time.Now().Add(-waitBehind)
		if s.mu.lost.IsZero() || s.mu.lost.After(since) || one.mu.behind.After(since) {
			return reason
		}
		s.log.Warn("upstream's resourceVersion went back", zap.Error(reason))
		s.mu.newest = found.rv
	}
	s.mu.newest = max(s.mu.newest, found.rv)
	return nil
}

// judge records whether a server may be used: reason is nil if it may. If the current server must
// not be used, judge chooses another server. The caller must hold mu.
func (s *Servers) judge(one *server, reason error) {
	had, may := s.usable(), one.mu.reason == nil
	one.mu.reason = reason
	s.metrics.note(one.Base.Host, reason == nil)
	this := zap.String("server", one.Base.Host)
	switch {
	case s.alone():
	case may && reason != nil:
		s.log.Warn("upstream server is no longer used", this, zap.Error(reason))
	case !may && reason == nil:
		s.log.Info("upstream server may be used", this)
	}
	switch has := s.usable(); {
	case had && !has:
		s.mu.lost = time.Now()
		s.log.Error("upstream is lost", this, zap.Error(reason))
	case !had && has:
		s.log.Info("upstream is back", this, zap.Duration("after", time.Since(s.mu.lost)))
		s.mu.lost = time.Time{}
	}
	now := s.current.Load()
	if now.mu.reason == nil || !s.usable() {
		return
	}
	next := s.servers[slices.IndexFunc(s.servers, (*server).usable)]
	s.current.Store(next)
	s.log.Info("switched to another upstream server",
		zap.String("server", next.Base.Host), zap.String("before", now.Base.Host))
}

// usable reports whether the server may be used. The caller must hold Servers.mu.
func (one *server) usable() bool { return one.mu.reason == nil }

// usable reports whether any server may be used. The caller must hold mu.
func (s *Servers) usable() bool { return slices.ContainsFunc(s.servers, (*server).usable) }

// noteCredentials records if a server refuses the proxy's credentials. The caller must hold mu.
func (s *Servers) noteCredentials(one *server, refused bool) {
	if one.mu.unauthorized == refused {
		return
	}
	one.mu.unauthorized = refused
	this := zap.String("server", one.Base.Host)
	if refused {
		s.log.Error("upstream does not accept the proxy's own credentials (401): "+
			"renew its token or certificate", this)
		return
	}
	s.log.Info("upstream accepts the proxy's own credentials again", this)
}

// Credentials returns an error if the current server has refused the proxy's own credentials in its
// last answer to a check. Other requests do not count, because a pod or the server of an aggregated
// API can also answer them with 401.
func (s *Servers) Credentials() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.current.Load(); one.mu.unauthorized {
		return fmt.Errorf("upstream %s does not accept the proxy's own credentials", one.Base.Host)
	}
	return nil
}
