package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	victimEvery = 10 * time.Millisecond  // between gets
	writeEvery  = 100 * time.Millisecond // between events of the watch
	counterName = "counter"              // the object that the victim watches
)

// orders name the victim's target and user.
type orders struct {
	Proxy, Token   string
	Upstream       string // where the victim writes the object that it watches
	UpstreamToken  string
	ProxyCA, Roots []byte
}

// report has the victim's observations since the previous report.
type report struct {
	Gets     int
	P50, P99 time.Duration
	Seen     int      // events, since the start
	Failed   []string // errors
}

// victim is another process, because this process may be busy with attacks. Then the measured
// latencies would be higher.
type victim struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	// hurt is true if the victim has failed, so that later rows need a new victim.
	hurt bool
}

func startVictim(t *testing.T, w *world, p *target) *victim {
	t.Helper()
	text, err := json.Marshal(orders{
		Proxy: p.proxy.URL, Token: tokenOf(victimUser), ProxyCA: p.proxy.CA,
		Upstream: w.api.URL, UpstreamToken: w.api.Token, Roots: w.api.CA,
	})
	cluster.MustT(t, err)
	self, err := os.Executable()
	cluster.MustT(t, err)
	v := &victim{cmd: exec.Command(self)}
	v.cmd.Env = append(os.Environ(), victimVariable+"="+string(text))
	v.cmd.Stderr = os.Stderr
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	v.in, err = v.cmd.StdinPipe()
	cluster.MustT(t, err)
	out, err := v.cmd.StdoutPipe()
	cluster.MustT(t, err)
	v.out = json.NewDecoder(out)
	cluster.MustT(t, v.cmd.Start())
	t.Cleanup(v.end)
	if began := v.tell(); len(began.Failed) > 0 {
		t.Errorf("the victim begins with %q", began.Failed)
	}
	return v
}

// end closes the victim's standard input, which makes it end.
func (v *victim) end() {
	v.in.Close()
	_ = v.cmd.Wait()
}

// tell requests the victim's next report.
func (v *victim) tell() (r report) {
	_, err := io.WriteString(v.in, "tell\n")
	if err == nil {
		err = v.out.Decode(&r)
	}
	if err != nil {
		r.Failed = append(r.Failed, fmt.Sprintf("the victim does not answer: %v", err))
	}
	return r
}

// suffering is the state of the victim's process.
type suffering struct {
	orders
	proxied, apiserver *cluster.Endpoint
	mu                 struct {
		sync.Mutex
		took   []time.Duration
		failed []string
		seen   int
		wrote  int
		ended  bool // the watch has ended
	}
}

// beVictim is the main function of the victim's process. The process ends when its standard input
// ends, at the latest with its parent.
func beVictim(text string) int {
	s := &suffering{}
	if err := json.Unmarshal([]byte(text), &s.orders); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.proxied = cluster.NewEndpoint("proxy", s.Proxy, s.Token, cluster.Trust(s.ProxyCA))
	s.apiserver = cluster.NewEndpoint("apiserver", s.Upstream, s.UpstreamToken, cluster.Trust(s.Roots))
	ctx, cancel := context.WithCancel(context.Background())
	var going sync.WaitGroup
	watching := make(chan struct{})
	going.Go(func() { s.watch(ctx, watching) })
	select {
	case <-watching:
	case <-time.After(limit):
		s.fail("the watch does not begin")
	}
	going.Go(func() { s.read(ctx, &going) })
	going.Go(func() { s.write(ctx) })
	going.Go(func() { s.forward(ctx) })
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		s.catchUp()
		if err := out.Encode(s.report()); err != nil {
			break
		}
	}
	cancel()
	going.Wait()
	return 0
}

func (s *suffering) fail(format string, args ...any) {
	const enough = 10
	s.mu.Lock()
	defer s.mu.Unlock()
	if what := fmt.Sprintf(format, args...); len(s.mu.failed) < enough && !slices.Contains(s.mu.failed, what) {
		s.mu.failed = append(s.mu.failed, what)
	}
}

// read gets a pod from the cache on every tick, even if earlier gets are unanswered. So a slow
// proxy receives as many requests as a fast proxy, while at most a hundred are unanswered.
func (s *suffering) read(ctx context.Context, going *sync.WaitGroup) {
	const atATime = 100
	places := make(chan struct{}, atATime)
	ticker := time.NewTicker(victimEvery)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		select {
		case places <- struct{}{}:
		default:
			continue
		}
		going.Go(func() {
			defer func() { <-places }()
			s.get(ctx, podsPath(victimSpace)+"/"+podName(victimSpace, i%victimPods)+"?resourceVersion=0")
		})
	}
}

func (s *suffering) get(ctx context.Context, target string) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := s.proxied.Ask(bounded, asking(target))
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.fail("get: %v", err)
	case got.Status != http.StatusOK:
		s.fail("get: %d %.200s", got.Status, got.Body)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.took = append(s.mu.took, time.Since(began))
	}
}

// asking returns a request from the victim.
func asking(target string) cluster.Request {
	return cluster.Request{Target: target, Header: http.Header{"Accept": {"application/json"}}, Protocol: cluster.HTTP2}
}

// write increments a counter in an object at the apiserver. The watch through the proxy must show
// every value.
func (s *suffering) write(ctx context.Context) {
	ticker := time.NewTicker(writeEvery)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		patch := asking(counterPath+"/"+counterName).With("Content-Type", "application/merge-patch+json")
		patch.Method, patch.Body = http.MethodPatch, fmt.Sprintf(`{"data":{"by":"%d","n":"%d"}}`, os.Getpid(), n)
		got, err := s.apiserver.Ask(ctx, patch)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil || got.Status != http.StatusOK:
			s.fail("write at the apiserver: %d %.200s %v", got.Status, got.Body, err)
			n--
		default:
			s.mu.Lock()
			s.mu.wrote = n
			s.mu.Unlock()
		}
	}
}

// forward creates objects through the proxy. The attackers' requests must not fail those of others,
// although they share connections upstream.
func (s *suffering) forward(ctx context.Context) {
	ticker := time.NewTicker(writeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		create := asking(counterPath+"?dryRun=All").With("Content-Type", "application/json")
		create.Method, create.Body = http.MethodPost, `{"metadata":{"generateName":"victim-"}}`
		switch got, err := s.proxied.Ask(ctx, create); {
		case ctx.Err() != nil:
			return
		case err != nil || got.Status != http.StatusCreated && got.Status != http.StatusTooManyRequests: // 429: the apiserver is busy
			s.fail("write: %d %.200s %v", got.Status, got.Body, err)
		}
	}
}

const counterPath = "/api/v1/namespaces/" + victimSpace + "/configmaps"

// watch keeps one watch open for the whole run. The watch must not end or skip a value.
func (s *suffering) watch(ctx context.Context, began chan<- struct{}) {
	const forever = "1000000"
	resp, err := s.proxied.Watch(ctx, asking(counterPath+"?watch=true&resourceVersion=0&timeoutSeconds="+forever+"&fieldSelector=metadata.name%3D"+counterName))
	if err != nil {
		s.fail("watch: %v", err)
		return
	}
	defer resp.Body.Close()
	defer func() {
		s.mu.Lock()
		s.mu.ended = true
		s.mu.Unlock()
	}()
	last, first := 0, true
	for events := json.NewDecoder(resp.Body); ; {
		var e struct {
			Type   string
			Object struct{ Data struct{ By, N string } }
		}
		if err := events.Decode(&e); err != nil {
			if ctx.Err() == nil {
				s.fail("the watch ended: %v", err)
			}
			return
		}
		n, err := strconv.Atoi(e.Object.Data.N)
		switch {
		case err != nil:
			s.fail("the watch shows %+v", e)
			return
		case first:
			first = false
			close(began)
			continue
		case e.Object.Data.By != strconv.Itoa(os.Getpid()):
			continue // from an earlier victim
		case n != last+1:
			s.fail("the watch goes from %d to %d", last, n)
		}
		last = n
		s.mu.Lock()
		s.mu.seen = n
		s.mu.Unlock()
	}
}

// catchUp waits until the watch has shown all writes so far, and a get was answered since the
// previous report. A row may be so short that all of its gets are still in flight when it ends.
func (s *suffering) catchUp() {
	s.mu.Lock()
	due := s.mu.wrote
	s.mu.Unlock()
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		seen, ended, gets, failed := s.mu.seen, s.mu.ended, len(s.mu.took), len(s.mu.failed) > 0
		s.mu.Unlock()
		switch {
		case (seen >= due || ended) && (gets > 0 || failed):
			return
		case time.Now().After(end):
			s.fail("the watch has shown %d of %d events, %d gets were answered", seen, due, gets)
			return
		}
	}
}

func (s *suffering) report() (r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.mu.took)
	r.Gets, r.Seen, r.Failed = len(s.mu.took), s.mu.seen, s.mu.failed
	if r.Gets > 0 {
		r.P50, r.P99 = s.mu.took[r.Gets/2], s.mu.took[r.Gets*99/100]
	}
	s.mu.took, s.mu.failed = nil, nil
	return r
}
