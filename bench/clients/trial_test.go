package clients

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// trial is one setting under way.
type trial struct {
	linearizability
	*world
	ledger  *ledger
	witness *watch // of all that happens, straight at the apiserver
	seed    uint64

	mu struct {
		sync.Mutex
		accounts []account
		kinds    map[string]*effort
		stale    int // reads of any state that the ledger found stale
		followed int // states that watches came to
		wrong    []string
	}
}

// effort is what reads of one kind have taken.
type effort struct {
	reads          int
	total, longest time.Duration
}

const (
	trialWriters    = 4
	trialNamespaces = 3
	followers       = 4
)

func newTrial(t *testing.T, api *cluster.APIServer, setting linearizability) *trial {
	t.Helper()
	o := &trial{linearizability: setting, world: &world{api: api}, seed: rand.Uint64()}
	o.mu.kinds = map[string]*effort{}
	t.Logf("seed %d", o.seed)
	var err error
	if o.admin, err = kubernetes.NewForConfig(api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	upstream := api.Kubeconfig
	if o.delay > 0 {
		upstream = startDelay(t, api, o.delay, o.seed)
	}
	o.proxy = cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: upstream})

	var namespaces []string
	for range trialNamespaces {
		namespaces = append(namespaces, o.namespace(t, "linearizable"))
	}
	o.ledger = newLedger(o.objects, namespaces...)
	straight := o.endpoints(t)[0]
	o.witness = straight.watchAt(t, "/api/v1/configmaps?watch=1&resourceVersion="+listVersion(t, straight.get(t, "/api/v1/configmaps?limit=1", nil)))
	var seeding sync.WaitGroup
	for i := range trialWriters {
		seeding.Go(func() {
			for object := i; object < o.objects; object += trialWriters {
				if err := o.write(t.Context(), object, false, object%len(colours)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	seeding.Wait()
	t.Cleanup(func() { // so that the next collection is as large as it should be
		for _, namespace := range namespaces {
			err := o.admin.CoreV1().ConfigMaps(namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil {
				t.Error(err)
			}
		}
	})
	eventually(t, "the cache is filled", func() bool {
		tryGet(t, o.proxy.URL+"/api/v1/configmaps?resourceVersion=0")
		return proxyMetrics(t, o.proxy).sum("watchproxy_feed_synced", "resource", "configmaps") == 1
	})
	return o
}

// run writes and reads for as long as the flag tells.
func (o *trial) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *linearize)
	defer cancel()
	proxy := o.endpoints(t)[1]
	proxy.client.Transport.(*http.Transport).MaxIdleConnsPerHost = o.readers + 1
	var running sync.WaitGroup
	worker := 0
	work := func(do func(*rand.Rand)) {
		worker++
		random := rand.New(rand.NewPCG(o.seed, uint64(worker)))
		running.Go(func() { do(random) })
	}
	for i := range trialWriters {
		work(func(random *rand.Rand) { o.writeAll(ctx, t, i, random) })
	}
	work(func(*rand.Rand) { o.writeElsewhere(ctx, t) })
	work(func(random *rand.Rand) { o.readAny(ctx, &reader{o.ledger, proxy, random}) })
	for range followers {
		work(func(random *rand.Rand) { o.follow(ctx, &reader{o.ledger, proxy, random}) })
	}
	for i := range o.readers {
		const prompt = 8 // one reader in as many
		work(func(random *rand.Rand) { o.readAll(ctx, &reader{o.ledger, proxy, random}, i%prompt == 0) })
	}
	running.Wait()
}

// writeAll changes the objects of one writer, again and again.
func (o *trial) writeAll(ctx context.Context, t *testing.T, writer int, random *rand.Rand) {
	timer := time.NewTimer(o.pace)
	defer timer.Stop()
	for {
		timer.Reset(time.Duration(random.Int64N(2 * int64(o.pace)))) // so that writers do not keep in step
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		object := writer + trialWriters*random.IntN(o.objects/trialWriters)
		const deletions = 5 // one write in as many
		gone := o.ledger.last(object).in(anything) && random.IntN(deletions) == 0
		if err := o.write(t.Context(), object, gone, random.IntN(len(colours))); err != nil {
			t.Error(err)
			return
		}
	}
}

// write changes an object straight at the apiserver: it deletes it, or else it creates or updates it.
func (o *trial) write(ctx context.Context, object int, gone bool, colour int) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	e := o.ledger.objects[object]
	configs := o.admin.CoreV1().ConfigMaps(o.ledger.namespaces[e.namespace])
	was := o.ledger.last(object)
	w := o.ledger.begin(object, gone, colour)
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: e.name, Labels: map[string]string{"colour": colours[colour]}},
		Data:       map[string]string{"n": strconv.FormatUint(uint64(w.n), 10)},
	}
	var err error
	switch {
	case gone:
		err = configs.Delete(ctx, e.name, metav1.DeleteOptions{})
	case was.in(anything):
		config, err = configs.Update(ctx, config, metav1.UpdateOptions{})
	default:
		config, err = configs.Create(ctx, config, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write %d of %s: %w", w.n, e.name, err)
	}
	version := uint64(0)
	if !gone {
		if version, err = strconv.ParseUint(config.ResourceVersion, 10, 64); err != nil {
			return fmt.Errorf("write %d of %s: resourceVersion: %w", w.n, e.name, err)
		}
	}
	o.ledger.acknowledge(object, version)
	return nil
}

// writeElsewhere takes resourceVersions for another resource, so that upstream is ahead of what the stream brings.
func (o *trial) writeElsewhere(ctx context.Context, t *testing.T) {
	secrets := o.admin.CoreV1().Secrets(o.ledger.namespaces[0])
	tick := time.NewTicker(o.noise)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("noise-%d", i)}}
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Error(err)
			return
		}
	}
}

// readAll makes one consistent read after the other and checks each. A prompt reader sends each just when a write was
// acknowledged.
func (o *trial) readAll(ctx context.Context, r *reader, prompt bool) {
	for ctx.Err() == nil {
		kind := consistentReads[r.random.IntN(len(consistentReads))]
		of := kind.choose(r)
		if prompt {
			select {
			case <-o.ledger.acknowledged():
			case <-ctx.Done():
				return
			}
		}
		before := o.ledger.floor()
		began := time.Now()
		seen, err := kind.read(r, of)
		took := time.Since(began)
		if err == nil {
			err = o.ledger.check(before, seen)
		}
		if err != nil {
			o.complain("%s of %+v, after %v: %v", kind.name, of, took, err)
			continue
		}
		o.ledger.settle(seen)
		o.note(kind.name, took, seen)
	}
}

// follow opens one watch after the other. They may be late, but each state that they come to has to be one that was.
func (o *trial) follow(ctx context.Context, r *reader) {
	for ctx.Err() == nil {
		following, cancel := context.WithTimeout(ctx, time.Duration(r.random.Int64N(int64(*linearize))))
		of := r.some()
		err := r.follow(following, of, func(seen sight) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.mu.followed++
			o.mu.accounts = append(o.mu.accounts, seen.account())
		})
		cancel()
		if err != nil {
			o.complain("following %+v: %v", of, err)
		}
	}
}

// readAny lists any state, which the check has to find stale now and then, or it would find nothing.
func (o *trial) readAny(ctx context.Context, r *reader) {
	for ctx.Err() == nil {
		select {
		case <-o.ledger.acknowledged():
		case <-ctx.Done():
			return
		}
		before := o.ledger.floor()
		began := time.Now()
		seen, err := r.listAny(r.everything())
		took := time.Since(began)
		if err == nil {
			o.note("list of any state", took, seen)
			err = o.ledger.check(before, seen)
		}
		if errors.Is(err, errStaleRead) {
			o.mu.Lock()
			o.mu.stale++
			o.mu.Unlock()
		} else if err != nil {
			o.complain("list of any state, after %v: %v", took, err)
		}
	}
}

func (o *trial) note(kind string, took time.Duration, seen sight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.kinds[kind] == nil {
		o.mu.kinds[kind] = &effort{}
	}
	e := o.mu.kinds[kind]
	e.reads++
	e.total += took
	e.longest = max(e.longest, took)
	if seen.of.object == anything {
		o.mu.accounts = append(o.mu.accounts, seen.account())
	}
}

func (o *trial) complain(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.wrong = append(o.mu.wrong, fmt.Sprintf(format, args...))
}
