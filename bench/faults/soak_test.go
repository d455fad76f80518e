package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
	"github.com/watchproxy/watchproxy/bench/workload"
)

var (
	soaking   = flag.Duration("soak", 6*time.Second, "how long TestSoak lasts")
	soakEvery = flag.Duration("sample", time.Second, "how often TestSoak looks at what the proxy holds")
)

const (
	soakSetting  = "cache: {log: {maxAge: 1m}}\n"
	soakRate     = 200 // events/s
	soakObjects  = 400
	soakWriters  = 16 // in flight
	soakWatchers = 60
	soakSlow     = 5 // watchers that read slowly
	soakPace     = 4 << 10
	soakReaders  = 4
	soakLife     = 20 * time.Second // of a client at most
)

// soak is a proxy with clients that come and go.
type soak struct {
	*world
	namespace             string
	events, clients       atomic.Int64
	lists, pages, resumed atomic.Int64

	mu struct {
		sync.Mutex
		wrong []string
	}
}

// sample has the proxy's figures at a moment.
type sample struct {
	at                                      time.Duration
	goroutines, files, resident, heap       float64
	watches, logged, events, clients, reads int64
}

// Clients come and go under writes for a configurable time. No client sees an error. The table
// shows the proxy's memory and other holdings; the reader of the table judges whether they grow.
func TestSoak(t *testing.T) {
	seed := cluster.Seed()
	o := &soak{world: newWorld(t, cluster.APIServerT(t, cluster.Options{}), configMaps, soakSetting, ""), namespace: "soak"}
	o.world.namespace(t, o.namespace)
	if err := o.awaken(t.Context(), o.straight(t), o.namespace); err != nil {
		t.Fatal(err)
	}
	w := &writers{namespace: o.namespace, of: o.of, objects: o.objects(o.namespace)}
	var samples []sample
	began := time.Now()
	err := workload.During(t.Context(), soakRate, soakWriters, func(ctx context.Context, i int) error {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		w.change(ctx, fmt.Sprintf("o-%d", random.IntN(soakObjects)), i, random)
		return nil
	}, func(ctx context.Context) error {
		samples = o.run(ctx, t, seed, w)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text := o.table(samples, float64(w.writes.Load())/time.Since(began).Seconds())
	t.Log("\n" + text)
	report(t, text)
	for _, wrong := range o.mu.wrong {
		t.Error(wrong)
	}
	if o.idle() || len(samples) == 0 {
		t.Error("nothing was done, so nothing was shown")
	}
}

// idle reports whether some kind of client has done nothing yet.
func (o *soak) idle() bool {
	return o.events.Load() == 0 || o.lists.Load() == 0 || o.pages.Load() == 0 || o.resumed.Load() == 0
}

// run starts clients again and again, and takes samples.
func (o *soak) run(ctx context.Context, t *testing.T, seed uint64, w *writers) (samples []sample) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	number := uint64(1) << 32 // other numbers than the writers'
	client := func(n int, live func(context.Context, *cluster.Endpoint, *rand.Rand) error) {
		for range n {
			number++
			random := rand.New(rand.NewPCG(seed, number))
			clients.Go(func() {
				for ctx.Err() == nil {
					if err := o.live(ctx, random, live); err != nil {
						o.complain(err)
						pause(ctx)
					}
				}
			})
		}
	}
	client(soakWatchers, func(ctx context.Context, s *cluster.Endpoint, random *rand.Rand) error {
		return o.watch(ctx, s, random, 0)
	})
	client(soakSlow, func(ctx context.Context, s *cluster.Endpoint, random *rand.Rand) error {
		return o.watch(ctx, s, random, soakPace)
	})
	client(soakReaders, o.read)
	client(soakReaders, o.walk)
	began := time.Now()
	for ; time.Since(began) < *soaking || o.idle() && time.Since(began) < *soaking+scenarioLimit; cluster.Pause(ctx, *soakEvery) {
		s, err := o.sample(ctx)
		if err != nil {
			o.complain(err)
			continue
		}
		s.at, s.events = time.Since(began), w.writes.Load()
		samples = append(samples, s)
	}
	return samples
}

func (o *soak) complain(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.mu.wrong) < shown {
		o.mu.wrong = append(o.mu.wrong, err.Error())
	}
}

// live runs a client, with its own connections, until it ends.
func (o *soak) live(ctx context.Context, random *rand.Rand, do func(context.Context, *cluster.Endpoint, *rand.Rand) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second+time.Duration(random.Int64N(int64(min(soakLife, *soaking/2)))))
	defer cancel()
	s := cluster.NewEndpoint(fmt.Sprintf("client %d", o.clients.Add(1)), o.proxy.URL, "", cluster.Trust(o.proxy.CA))
	defer s.CloseIdle()
	err := do(ctx, s, random)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the client's time was over
	}
	return err
}

// watch watches from the initial state on, disconnects now and then, and resumes. A pace in bytes/s
// makes it slow.
func (o *soak) watch(ctx context.Context, s *cluster.Endpoint, random *rand.Rand, pace int) error {
	at, since := uint64(0), "resourceVersion=&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	for ctx.Err() == nil {
		part, cancel := context.WithTimeout(ctx, time.Duration(1+random.IntN(5))*time.Second)
		resp, err := s.Watch(part, cluster.Get(o.of.watch(o.namespace, selections[random.IntN(2)], since)))
		if err == nil {
			at, err = o.follow(resp, pace, at)
			resp.Body.Close()
		}
		left := part.Err() != nil
		cancel()
		switch {
		case err != nil && !left && ctx.Err() == nil && pace == 0:
			return err
		case at == 0 || pace > 0: // nothing to resume from
			continue
		}
		o.resumed.Add(1)
		since = fmt.Sprintf("resourceVersion=%d", at)
	}
	return nil
}

// follow reads events, which must be in order once the initial state is complete.
func (o *soak) follow(resp *http.Response, pace int, at uint64) (uint64, error) {
	complete := at > 0
	for e, err := range conformance.Events(resp) {
		if pace > 0 {
			cluster.Pause(resp.Request.Context(), time.Duration(len(e.Line))*time.Second/time.Duration(pace))
		}
		switch {
		case errors.Is(err, conformance.ErrNoEvent):
			return at, err
		case err != nil:
			return at, nil //nolint:nilerr // the end of the client
		case e.Type == "ERROR":
			return at, fmt.Errorf("a watch that stands at %d: %s", at, e.Line)
		case complete && (e.RV < at || e.RV == at && e.Type != "BOOKMARK" && e.Type != "DELETED"): // deletions of a relist have the last resourceVersion before it
			return at, fmt.Errorf("%v came after %d", e, at)
		}
		o.events.Add(1)
		if complete = complete || e.InitialEnd; complete {
			at = e.RV
		}
	}
	return at, nil
}

// read lists, in turn the most recent state and any state.
func (o *soak) read(ctx context.Context, s *cluster.Endpoint, random *rand.Rand) error {
	for ctx.Err() == nil {
		query := []string{"", "?resourceVersion=0", "?labelSelector=colour%3Dred"}[random.IntN(3)]
		if _, err := body(ctx, s, o.of.list(o.namespace)+query); err != nil {
			return err
		}
		o.lists.Add(1)
		cluster.Pause(ctx, time.Duration(random.IntN(500))*time.Millisecond)
	}
	return nil
}

// walk reads all pages of a list. They are of one state, so no object occurs twice.
func (o *soak) walk(ctx context.Context, s *cluster.Endpoint, random *rand.Rand) error {
	for ctx.Err() == nil {
		seen, token := map[string]bool{}, ""
		for {
			page, err := body(ctx, s, o.of.list(o.namespace)+"?limit=50&continue="+token)
			if err != nil {
				return err
			}
			o.pages.Add(1)
			twice := ""
			gjson.GetBytes(page, "items.#.metadata.name").ForEach(func(_, name gjson.Result) bool {
				if seen[name.Str] {
					twice = name.Str
				}
				seen[name.Str] = true
				return true
			})
			if twice != "" {
				return fmt.Errorf("pages show %s twice", twice)
			}
			if token = gjson.GetBytes(page, "metadata.continue").Str; token == "" {
				break
			}
			cluster.Pause(ctx, time.Duration(random.IntN(200))*time.Millisecond)
		}
	}
	return nil
}

func (o *soak) sample(ctx context.Context) (s sample, err error) {
	m, err := o.proxy.Metrics(ctx)
	if err != nil {
		return s, err
	}
	files, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(o.proxy.PID()), "fd"))
	if err != nil {
		return s, err
	}
	resident, _, err := cluster.MemoryOf(o.proxy.PID())
	return sample{
		goroutines: m.Sum("go_goroutines"), files: float64(len(files)), resident: float64(resident) / (1 << 20),
		heap:    m.Sum("go_memstats_heap_inuse_bytes") / (1 << 20),
		watches: int64(m.Sum("watchproxy_watches")), logged: int64(m.Sum("watchproxy_feed_log_bytes")),
		clients: o.clients.Load(), reads: o.lists.Load() + o.pages.Load(),
	}, err
}

func (o *soak) table(samples []sample, rate float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %v, %.0f events/s, %d clients at a time: %d watchers, %d slow watchers, %d clients that list, %d clients that read pages. "+
		"In total, %d clients resumed %d watches, and read %d lists, %d pages and %d events.\n\n",
		time.Now().UTC().Format(time.DateOnly), *soaking, rate, soakWatchers+soakSlow+2*soakReaders,
		soakWatchers, soakSlow, soakReaders, soakReaders, o.clients.Load(), o.resumed.Load(), o.lists.Load(), o.pages.Load(), o.events.Load())
	b.WriteString("| time | events so far | clients so far | reads so far | open watches | bytes of the log | goroutines | file descriptors | proxy memory (MiB) | heap (MiB) |\n" +
		"|---|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range samples {
		fmt.Fprintf(&b, "| %v | %d | %d | %d | %d | %d | %.0f | %.0f | %.1f | %.1f |\n", s.at.Round(time.Second), s.events, s.clients, s.reads,
			s.watches, s.logged, s.goroutines, s.files, s.resident, s.heap)
	}
	return b.String()
}
