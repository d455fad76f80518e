package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// lateTarget is a watch that begins before the history of pageOf's cache.
const lateTarget = watchTarget + "3"

// lateWorld is a server whose cache has little history. Its client leaves by calling leave.
type lateWorld struct {
	t       *testing.T
	s       *Server
	address *rawListener
	opening atomic.Pointer[func(context.Context)]
	asked   atomic.Pointer[http.HandlerFunc] // upstream
}

func newLateWorld(t *testing.T) *lateWorld {
	t.Helper()
	w := &lateWorld{t: t}
	c, _ := cachetest.ConfigMaps(t, 10)
	w.reset()
	w.s, w.address = serveFeeds(t, oneFeed{feed: &rawFeed{c}, opening: func(ctx context.Context) { (*w.opening.Load())(ctx) }},
		func(out http.ResponseWriter, in *http.Request) { (*w.asked.Load())(out, in) }, testLimits(), nil)
	return w
}

// reset makes upstream's watches stay open until they are given up.
func (w *lateWorld) reset() {
	opening := func(context.Context) {}
	asked := http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) { <-in.Context().Done() })
	w.opening.Store(&opening)
	w.asked.Store(&asked)
}

// free reports whether all slots and counts are free.
func (w *lateWorld) free() bool {
	return w.s.limits.queues.late.Taken() == 0 && len(watchesOf(w.s)) == 0
}

// Whenever the client of a late watch leaves, its slot becomes free.
func TestLateSlotsComeBack(t *testing.T) {
	// Each stage calls leave at a different moment.
	stages := map[string]func(w *lateWorld, leave func()){
		"at once": func(_ *lateWorld, leave func()) { leave() },
		"while the cache is asked": func(w *lateWorld, leave func()) {
			opening := func(ctx context.Context) {
				leave()
				select {
				case <-ctx.Done(): // HTTP/2 reports the departure immediately
				case <-time.After(time.Second):
				}
			}
			w.opening.Store(&opening)
		},
		"while upstream is asked": func(w *lateWorld, leave func()) {
			asked := http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
				leave()
				<-in.Context().Done()
			})
			w.asked.Store(&asked)
		},
		"while upstream answers": func(w *lateWorld, leave func()) {
			asked := http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
				_ = http.NewResponseController(out).Flush()
				leave()
				<-in.Context().Done()
			})
			w.asked.Store(&asked)
		},
	}
	for _, protocol := range []string{"h2", "http/1.1"} {
		for name, stage := range stages {
			t.Run(protocol+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newLateWorld(t)
					client := clientTo(t, w.address, protocol)
					for range 3 * lateMax {
						ctx, leave := context.WithCancel(t.Context())
						w.reset()
						stage(w, leave)
						_, _ = client.send(ctx, "", http.MethodGet, lateTarget, nil) // ends with an error or not
						leave()
					}
					synctest.Wait()
					if !w.free() {
						t.Error("not all slots are free")
					}
				})
			})
		}
	}
}

// lateMax watches are forwarded. Until one of them ends, further watches receive the apiserver's
// error.
func TestLateSlotsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(t)
		ended := make(chan struct{})
		asked := http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
			_, _ = io.WriteString(out, "from upstream\n")
			_ = http.NewResponseController(out).Flush()
			select {
			case <-ended:
			case <-in.Context().Done():
			}
		})
		w.asked.Store(&asked)
		client := clientTo(t, w.address, "h2")
		watch := func() string {
			line, err := bufio.NewReader(client.open(t, lateTarget).Body).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return line
		}
		for i := range lateMax + 3 {
			if line := watch(); strings.Contains(line, "from upstream") != (i < lateMax) || i >= lateMax && !strings.Contains(line, `"reason":"Expired"`) {
				t.Errorf("late watch %d: %s", i, line)
			}
		}
		close(ended)
		synctest.Wait()
		if !w.free() {
			t.Error("not all slots are free")
		}
		if line := watch(); !strings.Contains(line, "from upstream") {
			t.Errorf("then %s", line)
		}
	})
}

// panics is a broken round tripper.
type panics struct{}

// RoundTrip implements http.RoundTripper.
func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("a mistake") }

// A panic gives back all resources of its request.
func TestPanicGivesBack(t *testing.T) {
	c, _ := cachetest.ConfigMaps(t, 10)
	forwards, err := forwarderTo(&rest.Config{Host: "http://localhost"}, func(http.RoundTripper) http.RoundTripper { return panics{} })
	if err != nil {
		t.Fatal(err)
	}
	parts := Parts{
		oneFeed{feed: &rawFeed{c}},
		forwards, newStore(t, 1<<20),
		metrics.New(prometheus.NewRegistry()), zap.NewNop(),
	}
	s := NewServer(parts, Options{
		Limits: testLimits(), Fixed: Fixed{AnyHost: true}, Options: read.Options{SyncTimeout: time.Minute},
	})
	client := &watchingClient{}
	for _, sent := range []string{"GET " + lateTarget, "GET /api/v1/namespaces/a/pods/x", "GET /version", "POST /api/v1/namespaces/a/configmaps"} {
		method, target, _ := strings.Cut(sent, " ")
		req := &exchange.Request{Method: method, Target: target, Header: http.Header{}, Client: client, Conn: noConn{}}
		req.SplitTarget()
		if method == http.MethodPost {
			req.Body = &exchange.Body{From: strings.NewReader("{}"), Length: 2}
			req.Header.Set("Content-Type", "application/json")
		}
		if resp := s.Handle(t.Context(), req); resp.Status != http.StatusInternalServerError {
			t.Errorf("%s: %d", sent, resp.Status)
		}
		req.Free()
		wantNothingHeld(t, s, sent)
	}
	const length = 100 << 10
	for _, at := range []int{0, exchange.BodyAhead + 1, length} {
		req := &exchange.Request{Method: http.MethodPost, Target: "/api/v1/namespaces/a/configmaps", Header: http.Header{"Content-Type": {"application/json"}}, Client: client, Conn: noConn{}}
		req.SplitTarget()
		req.Body = &exchange.Body{From: io.MultiReader(strings.NewReader(strings.Repeat("x", at)), panicsWhenRead{}), Length: length}
		if resp := s.Handle(t.Context(), req); resp.Status != http.StatusInternalServerError {
			t.Errorf("a panic after %d bytes: %d", at, resp.Status)
		}
		req.Free()
		wantNothingHeld(t, s, fmt.Sprintf("%d bytes", at))
		if n := testutil.ToFloat64(s.metrics.Forwards.WithLabelValues("create")); n != 0 {
			t.Errorf("after %d bytes: %v requests count as forwarded", at, n)
		}
	}
	if n := client.watched.Load(); n != 0 {
		t.Errorf("clients are still watched %d times", n)
	}
}

func wantNothingHeld(t *testing.T, s *Server, after string) {
	t.Helper()
	held := fmt.Sprint(s.limits.queues.late.Taken(), s.limits.queues.forwards.Taken(), usersHold(s), watchesOf(s), s.upstream.sharing.Waiting())
	if held != "0 0 0 map[] 0" {
		t.Errorf("after %s: %s", after, held)
	}
}

// panicsWhenRead is a broken body.
type panicsWhenRead struct{}

// Read implements io.Reader.
func (panicsWhenRead) Read([]byte) (int, error) { panic("a mistake") }

type watchingClient struct{ watched atomic.Int64 }

// CancelWhenGone implements exchange.Client.
func (c *watchingClient) CancelWhenGone(context.CancelFunc) (stop func()) {
	c.watched.Add(1)
	return func() { c.watched.Add(-1) }
}

// Interrupt implements exchange.Client.
func (*watchingClient) Interrupt() {}

// One user cannot take the slots of others.
func TestLateSlotsAreShared(t *testing.T) {
	o := testOptions()
	o.Access = &access.Access{}
	s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, o)
	defer s.life.Cut()
	admit := func(name string) (n int) {
		for ok := true; ok; {
			if _, ok = s.limits.admitLate(&exchange.Request{Identity: &access.Caller{User: &user.DefaultInfo{Name: name}}}); ok {
				n++
			}
		}
		return n
	}
	if greedy, modest, last := admit("greedy"), admit("modest"), admit("last"); greedy != lateMax/2 || modest != lateMax/4 || last != lateMax/8 {
		t.Errorf("%d, %d and %d of %d slots", greedy, modest, last, lateMax)
	}
}
