package linearizability

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// trial is one run of one setting.
type trial struct {
	linearizability
	*clients.World
	ledger  *ledger
	witness *clients.Watch // sees all events directly at the apiserver
	began   time.Time      // start of the reads
	took    time.Duration  // duration of the reads

	mu struct {
		sync.Mutex
		accounts []account
		kinds    map[string]*effort
		stale    int // reads of any state that were stale according to the ledger
		wrong    []string
	}
}

// effort is the number and the total time of the reads of one kind.
type effort struct {
	reads          int
	total, longest time.Duration
}

const (
	scribes         = 4
	readers         = 96
	trialNamespaces = 3
	// promptReaders is the number of readers that read right after the acknowledgement of a write.
	promptReaders = 4
	// For the first sixth of the time, a single reader reads, once per aloneEvery, because only
	// concurrent reads have to wait for each other.
	aloneShare = 6
	aloneEvery = 40 * time.Millisecond
)

// newTrial starts a proxy and fills a collection with objects.
func newTrial(t *testing.T, api *cluster.APIServer, setting linearizability) *trial {
	t.Helper()
	o := &trial{linearizability: setting, World: &clients.World{API: api, Admin: api.Client()}}
	o.mu.kinds = map[string]*effort{lax: {}}
	for _, kind := range consistentReads {
		o.mu.kinds[kind.name] = &effort{}
	}
	upstream := api.Kubeconfig
	if o.delay != (delay{}) {
		upstream = startDelay(t, api, o.delay, cluster.Seed())
	}
	o.Proxy = cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: upstream, TLS: true})

	var namespaces []string
	for range trialNamespaces {
		namespaces = append(namespaces, o.Namespace(t, "linearizable"))
	}
	o.ledger = newLedger(o.objects, namespaces...)
	straight := o.Endpoints(t)[0]
	o.witness = clients.WatchAt(t, straight, "/api/v1/configmaps?watch=1&resourceVersion="+clients.ListVersion(t, straight.GetT(t, "/api/v1/configmaps?limit=1", nil)))
	t.Cleanup(func() { // so that the next trial starts with an empty collection
		for _, namespace := range namespaces {
			err := o.Admin.CoreV1().ConfigMaps(namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil {
				t.Error(err)
			}
		}
	})
	var filling sync.WaitGroup
	for i := range scribes {
		filling.Go(func() {
			if err := o.scribe(i).fill(t.Context(), i, scribes); err != nil {
				t.Error(err)
			}
		})
	}
	filling.Wait()
	cluster.Eventually(t, "the cache is filled", func() bool {
		o.Endpoints(t)[1].GetT(t, "/api/v1/configmaps?resourceVersion=0", nil)
		return o.Proxy.CachedT(t, "configmaps")
	})
	return o
}

func (o *trial) scribe(i int) *scribe {
	return &scribe{o.ledger, o.Admin, rand.New(rand.NewPCG(cluster.Seed(), uint64(i)))}
}

// run writes and reads for the time given by the flag. On a busy machine it continues until there
// are enough reads.
func (o *trial) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	proxy := o.Endpoints(t)[1]
	newReader := func(i int) *reader {
		return &reader{o.ledger, proxy, rand.New(rand.NewPCG(cluster.Seed(), uint64(scribes+i)))}
	}
	o.began = time.Now()
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
		o.took = time.Since(o.began)
	}()
	work := func(do func() error) {
		running.Go(func() {
			if err := do(); err != nil {
				o.mu.Lock()
				defer o.mu.Unlock()
				o.mu.wrong = append(o.mu.wrong, err.Error())
			}
		})
	}
	for i := range scribes {
		work(func() error { return o.scribe(i).scribble(ctx, i, scribes, o.pace) })
	}
	work(func() error { return o.scribe(0).writeElsewhere(ctx, o.noise, o.leases) })
	for i := range readers {
		work(func() error { return o.readAll(ctx, newReader(i), i) })
	}
	work(func() error { return o.readAny(ctx, newReader(readers)) })
	<-time.After(*linearize)
	o.awaitEnough(t)
}

// readAll makes one consistent read after another and checks each, until ctx ends or a read is
// wrong.
func (o *trial) readAll(ctx context.Context, r *reader, number int) error {
	for o.turn(ctx, number) {
		kind := consistentReads[r.random.IntN(len(consistentReads))]
		of := kind.choose(r)
		before := o.ledger.floor()
		began := time.Now()
		seen, err := kind.read(r, of)
		took := time.Since(began)
		if err == nil {
			err = o.ledger.check(before, seen)
		}
		if err != nil {
			return fmt.Errorf("%s of %+v, after %v: %w", kind.name, of, took, err)
		}
		o.ledger.settle(seen)
		o.note(kind.name, took, seen)
	}
	return nil
}

// turn waits until it is a reader's turn. It returns false if ctx has ended.
func (o *trial) turn(ctx context.Context, number int) bool {
	pause := *linearize/aloneShare - time.Since(o.began)
	if number == 0 {
		pause = min(pause, aloneEvery)
	}
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if number < promptReaders {
		select {
		case <-o.ledger.acknowledged():
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// lax is the name of reads that may show an old state.
const lax = "list of any state"

// readAny lists states that may be old. The check must find some of these lists stale; otherwise it
// proves nothing about the other reads.
func (o *trial) readAny(ctx context.Context, r *reader) error {
	for {
		select {
		case <-o.ledger.acknowledged():
		case <-ctx.Done():
			return nil
		}
		before := o.ledger.floor()
		began := time.Now()
		seen, err := r.listAny(r.everything())
		if err != nil {
			return fmt.Errorf("%s: %w", lax, err)
		}
		o.note(lax, time.Since(began), seen)
		err = o.ledger.check(before, seen)
		if errors.Is(err, errStaleRead) {
			o.mu.Lock()
			o.mu.stale++
			o.mu.Unlock()
		} else if err != nil {
			return fmt.Errorf("%s: %w", lax, err)
		}
	}
}

// note records the duration and the sight of a read.
func (o *trial) note(kind string, took time.Duration, seen sight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.mu.kinds[kind]
	e.reads++
	e.total += took
	e.longest = max(e.longest, took)
	if seen.of.object == anything {
		o.mu.accounts = append(o.mu.accounts, seen.account())
	}
}
