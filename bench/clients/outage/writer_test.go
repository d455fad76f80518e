package outage

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// writer creates, changes and deletes objects with unique names, directly at the apiserver. During
// an outage, it repeats each step until the apiserver acknowledges it.
//
// It deletes only objects that a witness has seen, because a relist cannot show an object that was
// both created and deleted during an outage.
type writer struct {
	configs  typedcorev1.ConfigMapInterface
	witness  *clients.Watch
	random   *rand.Rand
	stopping context.CancelFunc
	abort    context.CancelFunc
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		steps, failures int
		created         map[string]bool // by key
		deleted         map[string]bool
		broken          error
	}
}

// colours are the values of the label that watches select by.
var colours = []string{"red", "green"}

func startWriter(t *testing.T, w *clients.World, witness *clients.Watch) *writer {
	t.Helper()
	ctx, abort := context.WithCancel(context.Background())
	going, stopping := context.WithCancel(ctx)
	o := &writer{
		configs:  w.Admin.CoreV1().ConfigMaps(crowded),
		witness:  witness,
		random:   rand.New(rand.NewPCG(cluster.Seed(), 0)),
		stopping: stopping,
		abort:    abort,
	}
	o.mu.created, o.mu.deleted = map[string]bool{}, map[string]bool{}
	o.running.Go(func() {
		const pause = 10 * time.Millisecond
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for going.Err() == nil {
			<-tick.C
			o.step(ctx)
		}
	})
	t.Cleanup(func() {
		abort()
		o.running.Wait()
	})
	return o
}

// stop ends the writer and waits for the step in progress, because an attempt may already have
// succeeded.
func (o *writer) stop() {
	o.stopping()
	o.running.Wait()
}

// proceed waits until the writer has made a number of further steps.
func (o *writer) proceed(t *testing.T, steps int) {
	t.Helper()
	begin, _, _ := o.progress()
	const bound = 2 * time.Minute // the apiserver may still be starting
	cluster.Within(t, bound, "the writer proceeds", func() bool {
		now, _, err := o.progress()
		if err != nil {
			t.Fatal(err)
		}
		return now >= begin+steps
	})
}

func (o *writer) progress() (steps, failures int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.steps, o.mu.failures, o.mu.broken
}

// step makes one change.
func (o *writer) step(ctx context.Context) {
	var act func(context.Context) error
	name := ""
	live := o.seen()
	switch pick := o.random.IntN(10); {
	case pick < 5 || len(live) == 0:
		name = fmt.Sprintf("object-%06d", len(o.mu.created)) // only this goroutine changes the map
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": colours[o.random.IntN(2)]}}}
		act = func(ctx context.Context) error {
			_, err := o.configs.Create(ctx, object, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // an earlier attempt succeeded without an acknowledgement
			}
			return err
		}
		defer o.note(o.mu.created, name)
	case pick < 8:
		patch := clients.LabelPatch("colour", colours[o.random.IntN(2)])
		if o.random.IntN(2) == 0 {
			patch = clients.LabelPatch("n", fmt.Sprint(o.random.Uint32()))
		}
		name = live[o.random.IntN(len(live))]
		act = func(ctx context.Context) error {
			_, err := o.configs.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}
	default:
		name = live[o.random.IntN(len(live))]
		act = func(ctx context.Context) error {
			err := o.configs.Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
		defer o.note(o.mu.deleted, name)
	}
	o.insist(ctx, name, act)
}

// seen returns the names of the objects that the witness has seen and that have not been deleted.
func (o *writer) seen() (names []string) {
	for _, e := range o.witness.Events() {
		if name := e.Key[min(len(crowded)+1, len(e.Key)):]; e.Type == "ADDED" && o.mu.created[e.Key] && !o.mu.deleted[e.Key] {
			names = append(names, name)
		}
	}
	return names
}

// insist repeats a call until it succeeds.
func (o *writer) insist(ctx context.Context, name string, act func(context.Context) error) {
	const patience, pause = 2 * time.Minute, 50 * time.Millisecond
	for end := time.Now().Add(patience); ctx.Err() == nil; cluster.Pause(ctx, pause) {
		trying, cancel := context.WithTimeout(ctx, cluster.Limit)
		err := act(trying)
		cancel()
		o.mu.Lock()
		switch {
		case err == nil:
			o.mu.steps++
		case time.Now().After(end):
			o.mu.broken = fmt.Errorf("%s: %w", name, err)
		default:
			o.mu.failures++
			o.mu.Unlock()
			continue
		}
		o.mu.Unlock()
		return
	}
}

func (o *writer) note(in map[string]bool, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in[crowded+"/"+name] = true
}

// history returns the keys of all created objects, and of those that were deleted.
func (o *writer) history() (created, deleted map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.mu.created), maps.Clone(o.mu.deleted)
}
