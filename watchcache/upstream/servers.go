package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Server is one of several apiservers of a cluster.
type Server struct {
	Base      *url.URL          // with the path, if any, in front of every request path
	Transport http.RoundTripper // brings the proxy's credentials
}

// Servers are the apiservers of one cluster, of which one at a time is asked: the first until
// it fails, then the next, and that one until it fails in turn. Going back would cost all streams
// anew.
//
// A server is asked if its own health check passes, if it is of the same cluster as the others
// (the namespace kube-system tells), and if a consistent read of it is no older than what any of
// them has said before: a server that lags behind its etcd, or whose etcd was cut off or restored, is
// waited for while there is another. If there is none it is asked all the same, as if it were alone;
// feeds find out for themselves then. Only a server of another cluster never is.
type Servers struct {
	servers []*server
	log     *zap.Logger
	metrics *serverMetrics
	current atomic.Int32
	mu      sync.Mutex // held by whoever changes what is known of the servers
	cluster string     // the uid of kube-system, empty if it may not be read
	newest  uint64     // the highest resourceVersion that a server has told
}

// server is what is known of one.
type server struct {
	Server
	client *Client
	check  chan struct{} // asks for a check now

	mu struct { // guarded by Servers.mu
		reason error     // why it is not asked; nil if it may be
		silent int       // checks in a row that it did not answer at all
		behind time.Time // since when it is; zero if it is not
	}
	foreign atomic.Bool // of another cluster: never asked, though it be the last one
	life    atomic.Pointer[life]
}

// life is the time for which a server is thought to answer. What it was asked ends with it.
type life struct {
	context.Context //nolint:containedctx // it is what is waited for
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
)

const (
	// checkEvery is how often servers are checked, checkAgain how soon after one did not answer.
	checkEvery   = 3 * time.Second
	checkAgain   = 500 * time.Millisecond
	checkRest    = 100 * time.Millisecond // between two checks, however often they are asked for
	checkTimeout = 2 * time.Second
	// lostAfter is how many checks in a row a server has to leave unanswered before its streams
	// are cut: one may be late under load. If no other server is any better, streams stay.
	lostAfter = 2
	// waitBehind is how long a server that is behind is waited for if there is no other: then
	// it will not come back to where it was.
	waitBehind = 3 * checkEvery
)

// NewServers asks each server once, all at the same time. It fails if none of them is fit to be asked.
func NewServers(ctx context.Context, servers []Server, metrics *Metrics, log *zap.Logger) (*Servers, error) {
	s := &Servers{log: log, metrics: &metrics.servers}
	for _, each := range servers {
		one := &server{Server: each, client: NewClient(each.Base, each.Transport, metrics), check: make(chan struct{}, 1)}
		one.life.Store(newLife())
		s.servers = append(s.servers, one)
	}
	for range 2 { // the second time it is known where the others are
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

// askAll checks all at the same time, and draws the conclusions in their order: the first that
// answers says which cluster it is.
func (s *Servers) askAll(ctx context.Context) {
	found := make([]standingAt, len(s.servers))
	var all sync.WaitGroup
	for i, one := range s.servers {
		before := s.before()
		all.Go(func() { found[i] = one.ask(ctx, before) })
	}
	all.Wait()
	for i, one := range s.servers {
		s.note(one, found[i])
	}
}

// before is the resourceVersion that no consistent read which begins now can be below.
func (s *Servers) before() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// Run follows how the servers are until ctx ends.
func (s *Servers) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, one := range s.servers {
		all.Go(func() {
			for next := checkEvery; ; {
				select {
				case <-one.check:
				case <-time.After(next):
				case <-ctx.Done():
					return
				}
				found := one.ask(ctx, s.before())
				if ctx.Err() != nil {
					return
				}
				s.note(one, found)
				sleep(ctx, checkRest)
				next = checkEvery
				if noAnswer(found.err) {
					next = checkAgain
				}
			}
		})
	}
	all.Wait()
}

// Current is the address of the server that is asked, as host:port.
func (s *Servers) Current() string { return s.servers[s.current.Load()].Base.Host }

// standingAt is what a check found.
type standingAt struct {
	cluster string // empty if it may not be read
	rv      uint64 // 0 if it may not be read
	before  uint64 // what one of them had told when it was asked
	err     error
	silent  bool // it said nothing whatsoever
}

// ask checks a server.
func (one *server) ask(ctx context.Context, before uint64) (found standingAt) {
	found.before = before
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if found.err = one.ready(ctx); found.err != nil {
		found.silent = noAnswer(found.err)
		return found
	}
	if found.cluster, found.err = one.client.cluster(ctx); found.err != nil {
		return found
	}
	p, err := one.client.probe(ctx, &watchcache.Resource{GVR: namespaces, Encoding: watchcache.JSON})
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return found
	}
	found.rv, found.err = p.rv, err
	return found
}

// ready asks a server whether it wants to be asked.
func (one *server) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, one.Base.JoinPath("readyz").String(), nil)
	if err != nil {
		return fmt.Errorf("request /readyz: %w", err)
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := one.client.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask /readyz: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden: // it need not be for everybody to read
		return nil
	}
	return fmt.Errorf("/readyz: %s", resp.Status)
}

// note draws the conclusions from a check.
func (s *Servers) note(one *server, found standingAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := found.err
	switch {
	case reason != nil:
	case found.cluster != "" && s.cluster != "" && found.cluster != s.cluster:
		reason = errForeign
	case found.rv != 0 && found.rv < found.before:
		reason = fmt.Errorf("%w: at %d, they were at %d", errBehind, found.rv, found.before)
	}
	switch {
	case !errors.Is(reason, errBehind):
		one.mu.behind = time.Time{}
	case one.mu.behind.IsZero():
		one.mu.behind = time.Now()
	}
	if errors.Is(reason, errBehind) && time.Since(one.mu.behind) >= waitBehind && !s.usable() {
		s.log.Warn("upstream's resourceVersion went back", zap.String("server", one.Base.Host), zap.Error(reason))
		s.newest, reason = found.rv, nil
	}
	if reason == nil {
		s.newest = max(s.newest, found.rv)
		if s.cluster == "" {
			s.cluster = found.cluster
		}
	}
	one.mu.silent++
	if !found.silent {
		one.mu.silent = 0
	}
	one.foreign.Store(errors.Is(reason, errForeign))
	s.judge(one, reason)
	if one.foreign.Load() || one.mu.silent >= lostAfter && s.usable() {
		one.life.Swap(newLife()).end()
	}
}

// usable tells whether there is a server that may be asked. Whoever calls it holds mu.
func (s *Servers) usable() bool {
	return slices.ContainsFunc(s.servers, func(one *server) bool { return one.mu.reason == nil })
}

// failed notes that a server could not be connected to, and returns which one to ask instead, if
// there is one.
func (s *Servers) failed(one *server, err error) (instead *server, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.mu.reason == nil {
		s.judge(one, err)
	}
	instead = s.servers[s.current.Load()]
	return instead, instead != one
}

// suspect has a server checked now.
func (s *Servers) suspect(one *server) {
	select {
	case one.check <- struct{}{}:
	default:
	}
}

// judge notes why a server is not to be asked, or nil, and chooses another if need be. Whoever
// calls it holds mu.
func (s *Servers) judge(one *server, reason error) {
	if (one.mu.reason == nil) != (reason == nil) {
		if reason != nil {
			s.log.Warn("upstream server is not asked any more", zap.String("server", one.Base.Host), zap.Error(reason))
		} else {
			s.log.Info("upstream server may be asked", zap.String("server", one.Base.Host))
		}
	}
	one.mu.reason = reason
	s.metrics.note(one.Base.Host, reason == nil)
	now := s.servers[s.current.Load()]
	if now.mu.reason == nil {
		return
	}
	for i, next := range s.servers {
		if next.mu.reason == nil {
			s.current.Store(int32(i))
			s.metrics.failovers.Inc()
			s.log.Info("another upstream server is asked", zap.String("server", next.Base.Host), zap.String("before", now.Base.Host))
			return
		}
	}
}
