package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Server is an apiserver of a cluster.
type Server struct {
	Base      *url.URL          // the path, if any, is prepended to every request path
	Transport http.RoundTripper // adds the proxy's credentials
}

// Set is the set of apiservers of one cluster. It uses one server at a time. If that server fails,
// the set switches to another usable server. It does not return to the first server, because that
// would break all streams again. The checks also inform all feeds whether upstream can be reached
// (see [Health]).
//
// The resourceVersions of kube-apiserver are etcd's, so a feed whose stream breaks can resume at
// any server. A lagging watch cache does no harm. For a list, the apiserver waits until its cache
// has reached the requested resourceVersion. A watch delivers only later events.
//
// A single server is checked only for readiness, because there is no other server to compare it
// with. It is checked when a feed doubts it, and otherwise every ten seconds. So the loss of the
// server is noticed without feeds, too.
//
// A server may be used under three conditions:
//
//  1. Its health check passes.
//  2. It belongs to the same cluster as the other servers, by the uid of kube-system.
//  3. A consistent read returns a resourceVersion at least as high as all servers' earlier
//     responses.
//
// So the set does not use a server that lags behind its etcd, or whose etcd was cut off or
// restored. If there is no other server, the set uses such a server like a single server, and feeds
// detect its state themselves. The set never uses a server of another cluster.
type Set struct {
	servers []*server
	log     *zap.Logger
	metrics *Metrics
	Health  *Health
	current atomic.Int32
	mu      sync.Mutex // held to change the state of the servers
	cluster string     // the uid of kube-system, empty if it cannot be read
	newest  uint64     // the highest resourceVersion of any server
	lost    time.Time  // when the last usable server was lost; zero if a server has always been usable
	turn    int64      // moment of the next free slot for a check while upstream is down
}

// server is the state of one server.
type server struct {
	Server
	client *client.Client
	check  chan struct{} // requests an immediate check

	mu struct { // guarded by Set.mu
		reason error // why the server must not be used; nil if it may be used
		silent int   // unanswered checks in a row, without refused connections
		// refuses is when the server began to refuse connections; zero if it does not.
		refuses time.Time
		behind  time.Time // since when the server has been behind; zero if it is not behind
		// ready is true if the last check found the server ready. It is also true if the server
		// serves reads although it reports that it is not ready. unready is when the server first
		// reported that it is not ready; zero if it is ready.
		ready    bool
		unready  time.Time
		readable bool      // /readyz has been readable
		refused  time.Time // since when /readyz has been refused although it was readable; zero if it is not
		// unauthorized is true if the last answer to a check refused the proxy's credentials.
		unauthorized bool
	}
	foreign atomic.Bool // the server belongs to another cluster; it is never used
	life    atomic.Pointer[life]
}

// life ends when the set gives up a server. All requests to the server end with it.
type life struct {
	context.Context //nolint:containedctx // callers wait for it
	end             context.CancelFunc
}

func newLife() *life {
	ctx, end := context.WithCancel(context.Background())
	return &life{ctx, end}
}

var (
	errForeign = errors.New("belongs to another cluster")
	errBehind  = errors.New("is behind the others")
	errDead    = errors.New("does not answer any more")
	errRefused = errors.New("may not be read any more")
)

const (
	// After lostAfter successive unanswered checks, a server's requests and streams are cut. A single
	// check may be late under load. If no other server is usable, they stay.
	lostAfter = 2
	// stopsFor is the time for which they stay at a server that refuses connections. Such a server may
	// be about to stop, and still answers what it has received. If it has ended, its connections are
	// closed anyway.
	stopsFor = 10 * time.Second
	// waitBehind is how long no server is usable before the set uses one that has been behind for as
	// long. It then assumes that etcd was restored.
	waitBehind = 3 * checkEvery
)

// New creates a set. If there are several servers, New checks all of them in parallel. It returns
// an error if none of them is usable.
func New(ctx context.Context, servers []Server, metrics *Metrics, requests *client.Metrics, log *zap.Logger) (*Set, error) {
	s := newServers(servers, metrics, requests, log)
	if s.alone() {
		return s, nil
	}
	for range 2 { // only the second round compares with the revisions of all servers
		s.askAll(ctx)
	}
	var reasons []error
	for _, one := range s.servers {
		if one.mu.reason == nil {
			return s, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", one.Base.Host, one.mu.reason))
	}
	return nil, errors.Join(reasons...)
}

func newServers(servers []Server, metrics *Metrics, requests *client.Metrics, log *zap.Logger) *Set {
	s := &Set{log: log, metrics: metrics}
	s.Health = newHealth(func() { s.suspect(s.servers[s.current.Load()]) })
	for _, each := range servers {
		one := &server{Server: each, client: client.New(each.Base, each.Transport, requests), check: make(chan struct{}, 1)}
		one.life.Store(newLife())
		one.mu.ready = true
		s.metrics.note(one.Base.Host, true)
		s.servers = append(s.servers, one)
	}
	return s
}

// Client returns a client for the current server. transport must come from [Set.Transport].
func (s *Set) Client(transport http.RoundTripper, requests *client.Metrics) *client.Client {
	return client.New(s.servers[0].Base, transport, requests)
}

func (s *Set) alone() bool { return len(s.servers) == 1 }

// askAll checks all servers in parallel and records the results in the servers' order. The first
// server that responds defines the cluster.
func (s *Set) askAll(ctx context.Context) {
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

// Current returns the address of the current server, as host:port.
func (s *Set) Current() string { return s.servers[s.current.Load()].Base.Host }

// note applies a check's result.
func (s *Set) note(one *server, found checkResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := found.err
	switch {
	// A server of another cluster stays one until it shows the right uid, whatever else fails.
	case s.cluster != "" && found.cluster != s.cluster && (found.cluster != "" || one.foreign.Load()):
		reason = errForeign
	case reason != nil:
	case found.rv != 0 && found.rv < found.before:
		reason = fmt.Errorf("%w: at %d, they were at %d", errBehind, found.rv, found.before)
	}
	if s.alone() && found.serves { // one of its health checks has failed for long
		reason = nil
	}
	if !found.silent || found.serves {
		s.metrics.answered(one.Base.Host)
	}
	behind := errors.Is(reason, errBehind)
	keepSince(&one.mu.behind, behind)
	if behind && !s.usable() && min(time.Since(one.mu.behind), time.Since(s.lost)) >= waitBehind {
		s.log.Warn("upstream's resourceVersion went back", zap.String("server", one.Base.Host), zap.Error(reason))
		s.newest, reason = found.rv, nil
	}
	if reason == nil {
		s.newest = max(s.newest, found.rv)
		if s.cluster == "" {
			s.cluster = found.cluster
		}
	}
	keepSince(&one.mu.refused, errors.Is(found.err, errRefused))
	refused := errors.Is(found.err, syscall.ECONNREFUSED)
	keepSince(&one.mu.refuses, refused)
	if one.mu.silent++; !found.silent || refused && time.Since(one.mu.refuses) < stopsFor {
		one.mu.silent = 0
	}
	one.mu.ready = !found.unready || found.serves
	// While the server is down, it is not unready: unready begins with its first response.
	keepSince(&one.mu.unready, found.unready && !unconnected(found.err))
	if !found.unready {
		one.mu.readable = found.readable
	}
	if found.code != 0 && found.code < http.StatusInternalServerError { // a balancer's error tells nothing
		s.noteCredentials(one, found.code == http.StatusUnauthorized)
	}
	one.foreign.Store(errors.Is(reason, errForeign))
	s.judge(one, reason)
	if one.foreign.Load() || one.mu.silent >= lostAfter && s.usable() {
		one.life.Swap(newLife()).end()
	}
}

// noteCredentials records whether a server refuses the proxy's credentials. The caller must hold mu.
func (s *Set) noteCredentials(one *server, refused bool) {
	if one.mu.unauthorized == refused {
		return
	}
	one.mu.unauthorized = refused
	if refused {
		s.log.Error("upstream does not accept the proxy's own credentials (401): renew its token or certificate",
			zap.String("server", one.Base.Host))
		return
	}
	s.log.Info("upstream accepts the proxy's own credentials again", zap.String("server", one.Base.Host))
}

// Credentials returns an error if the current server has refused the proxy's own credentials in its
// last answer to a check. Other requests do not count, because a pod or the server of an aggregated
// API can also answer them with 401.
func (s *Set) Credentials() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.servers[s.current.Load()]; one.mu.unauthorized {
		return fmt.Errorf("upstream %s does not accept the proxy's own credentials", one.Base.Host)
	}
	return nil
}

// unconnected reports whether the server refused the connection, or its certificate was refused.
func unconnected(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// keepSince keeps the time since which a condition holds; zero while it does not.
func keepSince(t *time.Time, holds bool) {
	switch {
	case !holds:
		*t = time.Time{}
	case t.IsZero():
		*t = time.Now()
	}
}

// usable reports whether any server may be used. The caller must hold mu.
func (s *Set) usable() bool {
	return slices.ContainsFunc(s.servers, func(one *server) bool { return one.mu.reason == nil })
}

// failed records that a request got no connection to a server. It returns another usable server, if
// there is one. If the server accepted the connection, the failure may be the proxy's own, for
// example an unreadable key, so the verdict is left to the check.
func (s *Set) failed(one *server, err error) (instead *server, ok bool) {
	s.suspect(one)
	s.mu.Lock()
	defer s.mu.Unlock()
	if unconnected(err) {
		if one.mu.reason == nil {
			s.judge(one, err)
		}
		instead = s.servers[s.current.Load()]
		return instead, instead != one
	}
	at := slices.Index(s.servers, one)
	for _, next := range slices.Concat(s.servers[at+1:], s.servers[:at]) {
		if next.mu.reason == nil {
			return next, true
		}
	}
	return nil, false
}

// suspect requests an immediate check of a server.
func (s *Set) suspect(one *server) {
	select {
	case one.check <- struct{}{}:
	default:
	}
}

// judge records whether a server may be used: reason is nil if it may. If the current server must
// not be used, judge chooses another server. The caller must hold mu.
func (s *Set) judge(one *server, reason error) {
	if (one.mu.reason == nil) != (reason == nil) && !s.alone() {
		if reason != nil {
			s.log.Warn("upstream server is no longer used", zap.String("server", one.Base.Host), zap.Error(reason))
		} else {
			s.log.Info("upstream server may be used", zap.String("server", one.Base.Host))
		}
	}
	had := s.usable()
	one.mu.reason = reason
	s.metrics.note(one.Base.Host, reason == nil)
	switch has := s.usable(); {
	case had && !has:
		s.lost = time.Now()
		s.log.Error("upstream is lost", zap.String("server", one.Base.Host), zap.Error(reason))
	case !had && has && !s.lost.IsZero():
		s.log.Info("upstream is back", zap.String("server", one.Base.Host), zap.Duration("after", time.Since(s.lost)))
	}
	now := s.servers[s.current.Load()]
	if now.mu.reason == nil {
		return
	}
	for i, next := range s.servers {
		if next.mu.reason == nil {
			s.current.Store(int32(i))
			s.metrics.failovers.Inc()
			s.log.Info("switched to another upstream server", zap.String("server", next.Base.Host), zap.String("before", now.Base.Host))
			return
		}
	}
}
