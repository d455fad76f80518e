package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

var colours = []string{"red", "green", "blue"}

// writers change objects of a namespace, directly at the apiserver.
type writers struct {
	namespace string
	of        resource
	objects   dynamic.ResourceInterface
	acked     atomic.Uint64 // the largest resourceVersion that was acknowledged
	writes    atomic.Int64
	running   sync.WaitGroup
	stop      context.CancelFunc
}

const (
	writerCount  = 3
	objectsEach  = 15
	writePause   = 15 * time.Millisecond
	writeTimeout = 5 * time.Second
)

func startWriters(ctx context.Context, client dynamic.Interface, of resource, namespace string, seed uint64) *writers {
	w := &writers{namespace: namespace, of: of, objects: client.Resource(of.GroupVersionResource).Namespace(namespace)}
	ctx, w.stop = context.WithCancel(ctx)
	for i := range writerCount {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		w.running.Go(func() { w.write(ctx, i, random) })
	}
	return w
}

func (w *writers) end() {
	w.stop()
	w.running.Wait()
}

// write changes one object after another. It does not repeat a write that the apiserver does not
// acknowledge.
func (w *writers) write(ctx context.Context, me int, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		w.change(context.WithoutCancel(ctx), fmt.Sprintf("w-%d-%d", me, random.IntN(objectsEach)), n, random)
		select {
		case <-time.After(writePause):
		case <-ctx.Done():
		}
	}
}

func (w *writers) change(ctx context.Context, name string, n int, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	const deletions = 6 // one write in six
	if random.IntN(deletions) == 0 {
		if err := w.objects.Delete(ctx, name, metav1.DeleteOptions{}); err == nil {
			w.writes.Add(1)
		}
		return
	}
	_, _ = w.put(ctx, name, colours[random.IntN(len(colours))], n) // the apiserver may be away
}

// put creates or updates an object, and returns its resourceVersion.
func (w *writers) put(ctx context.Context, name, colour string, n int) (rv uint64, err error) {
	object := w.of.object(name, colour, strconv.Itoa(n))
	patch, err := object.MarshalJSON()
	if err != nil {
		return 0, err
	}
	got, err := w.objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		got, err = w.objects.Create(ctx, object, metav1.CreateOptions{})
	}
	if err == nil {
		rv, err = strconv.ParseUint(got.GetResourceVersion(), 10, 64)
	}
	if err != nil {
		return 0, err
	}
	w.writes.Add(1)
	for {
		if was := w.acked.Load(); rv <= was || w.acked.CompareAndSwap(was, rv) {
			return rv, nil
		}
	}
}

// mark makes the last write of each selection, and returns the resourceVersions.
func (w *writers) mark(ctx context.Context) (last []uint64, err error) {
	var rvs []uint64
	for _, name := range []string{pinned, "end-red", "end-blue"} {
		colour := "red"
		if name == "end-blue" {
			colour = "blue"
		}
		rv, err := w.put(ctx, name, colour, -1)
		if err != nil {
			return nil, err
		}
		rvs = append(rvs, rv)
	}
	return []uint64{rvs[2], rvs[1], rvs[2], rvs[0]}, nil // in the order of selections
}

// pinned is the name of an object that some watchers watch by name.
const pinned = "w-0-0"
