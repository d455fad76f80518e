package outage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// writer creates, changes and deletes objects, at an apiserver that does not fail.
type writer struct {
	world  *clients.World
	random *rand.Rand
	live   []string
	steps  atomic.Int64
	stop   func()
}

func startWriter(t *testing.T, w *clients.World) *writer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := &writer{world: w, random: rand.New(rand.NewPCG(cluster.Seed(), 0))}
	var running sync.WaitGroup
	running.Go(func() {
		const pause = 10 * time.Millisecond
		for ; ctx.Err() == nil && !t.Failed(); cluster.Pause(ctx, pause) {
			o.step(t)
			o.steps.Add(1)
		}
	})
	o.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(o.stop)
	return o
}

// proceed waits until the writer has made a number of further steps.
func (o *writer) proceed(t *testing.T, steps int64) {
	t.Helper()
	begin := o.steps.Load()
	cluster.Eventually(t, "the writer proceeds", func() bool {
		if t.Failed() {
			t.FailNow()
		}
		return o.steps.Load() >= begin+steps
	})
}

// step makes one change.
func (o *writer) step(t *testing.T) {
	t.Helper()
	configs := o.world.Admin.CoreV1().ConfigMaps(crowded)
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Limit)
	defer cancel()
	colour := colours[o.random.IntN(2)]
	at := o.random.IntN(len(o.live) + 1)
	var err error
	switch pick := o.random.IntN(10); {
	case pick < 5 || at == len(o.live):
		name := fmt.Sprintf("object-%06d", o.steps.Load())
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": colour}}}
		_, err = configs.Create(ctx, object, metav1.CreateOptions{})
		o.live = append(o.live, name)
	case pick < 8:
		patch := clients.LabelPatch("colour", colour)
		if o.random.IntN(2) == 0 {
			patch = clients.LabelPatch("n", fmt.Sprint(o.random.Uint32()))
		}
		_, err = configs.Patch(ctx, o.live[at], types.MergePatchType, patch, metav1.PatchOptions{})
	default:
		err = configs.Delete(ctx, o.live[at], metav1.DeleteOptions{})
		o.live = append(o.live[:at], o.live[at+1:]...)
	}
	if err != nil {
		t.Error(err)
	}
}
