package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Server is an apiserver of a cluster.
type Server struct {
	Base      *url.URL          // with the path, if any, in front of every request path
	Transport http.RoundTripper // brings the proxy's credentials
}

// Set are the apiservers of one cluster, of which one at a time is asked: the first until
// it fails, then the next, and that one until it fails in turn. Going back would cost all streams
// anew. Their checks also tell all feeds whether upstream is there (see [health]).
//
// A server that is the only one is checked when a feed doubts it, and then only whether it is
// ready: there is nothing to compare it with.
//
// A server is asked if its own health check passes, if it is of the same cluster as the others
// (the namespace kube-system tells), and if a consistent read of it is no older than what any of
// them has said before: a server that lags behind its etcd, or whose etcd was cut off or restored, is
// waited for while there is another. If there is none it is asked all the same, as if it were alone;
// feeds find out for themselves then. Only a server of another cluster never is.
type Set struct {
	servers []*server
	log     *zap.Logger
	metrics *Metrics
	Health  *Health
	current atomic.Int32
	mu      sync.Mutex // held by whoever changes what is known of the servers
	cluster string     // the uid of kube-system, empty if it may not be read
	newest  uint64     // the highest resourceVersion that a server has told
	turn    int64      // moment of the last check that was put off while upstream is away
}

// server is what is known of one.
type server struct {
	Server
	client *client.Client
	check  chan struct{} // asks for a check now

	mu struct { // guarded by Servers.mu
		reason error     // why it is not asked; nil if it may be
		silent int       // checks in a row that it did not answer at all
		behind time.Time // since when it is; zero if it is not
		// ready is whether it was when it was last asked, by its own word or because it serves in
		// spite of that; unready is since when it says that it is not, zero if it does not.
		ready    bool
		unready  time.Time
		readable bool // /readyz has been read
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
	// lostAfter is how many checks in a row a server has to leave unanswered before its streams
	// are cut: one may be late under load. If no other server is any better, streams stay.
	lostAfter = 2
	// waitBehind is how long a server that is behind is waited for if there is no other: then
	// it will not come back to where it was.
	waitBehind = 3 * checkEvery
)

// New asks each server once, all at the same time, if there are several. It fails if none of
// them is fit to be asked.
func New(ctx context.Context, servers []Server, metrics *Metrics, requests *client.Metrics, log *zap.Logger) (*Set, error) {
	s := newServers(servers, metrics, requests, log)
	if s.alone() {
		return s, nil
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

// Client returns a client for whichever server is asked at the time. Transport is the way there
// (see [Set.Transport]).
func (s *Set) Client(transport http.RoundTripper, requests *client.Metrics) *client.Client {
	return client.New(s.servers[0].Base, transport, requests)
}

func (s *Set) alone() bool { return len(s.servers) == 1 }

// askAll checks all at the same time, and draws the conclusions in their order: the first that
// answers says which cluster it is.
func (s *Set) askAll(ctx context.Context) {
	found := make([]standingAt, len(s.servers))
	var all sync.WaitGroup
	for i, one := range s.servers {
		all.Go(func() { found[i] = s.ask(ctx, one) })
	}
	all.Wait()
	for i, one := range s.servers {
		s.note(one, found[i])
	}
}

// before is the resourceVersion that no consistent read which begins now can be below.
func (s *Set) before() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// Current is the address of the server that is asked, as host:port.
func (s *Set) Current() string { return s.servers[s.current.Load()].Base.Host }

// note draws the conclusions from a check.
func (s *Set) note(one *server, found standingAt) {
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
	one.mu.ready = !found.unready || found.serves
	switch {
	case !found.unready:
		one.mu.unready = time.Time{}
		one.mu.readable = found.readable
	case unconnected(found.err): // it is not there: its patience begins when it says something
		one.mu.unready = time.Time{}
	case one.mu.unready.IsZero():
		one.mu.unready = time.Now()
	}
	one.foreign.Store(errors.Is(reason, errForeign))
	s.judge(one, reason)
	if one.foreign.Load() || one.mu.silent >= lostAfter && s.usable() {
		one.life.Swap(newLife()).end()
	}
}

// usable tells whether there is a server that may be asked. Whoever calls it holds mu.
func (s *Set) usable() bool {
	return slices.ContainsFunc(s.servers, func(one *server) bool { return one.mu.reason == nil })
}

// failed notes that a server could not be connected to, and returns which one to ask instead, if
// there is one.
func (s *Set) failed(one *server, err error) (instead *server, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.mu.reason == nil {
		s.judge(one, err)
	}
	instead = s.servers[s.current.Load()]
	return instead, instead != one
}

// suspect has a server checked now.
func (s *Set) suspect(one *server) {
	select {
	case one.check <- struct{}{}:
	default:
	}
}

// judge notes why a server is not to be asked, or nil, and chooses another if need be. Whoever
// calls it holds mu.
func (s *Set) judge(one *server, reason error) {
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
