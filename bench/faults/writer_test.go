package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

var colours = []string{"red", "green", "blue"}

// writers change objects of a namespace, straight at the apiserver.
type writers struct {
	namespace string
	admin     *kubernetes.Clientset
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

func startWriters(ctx context.Context, admin *kubernetes.Clientset, namespace string, seed uint64) *writers {
	w := &writers{namespace: namespace, admin: admin}
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

func (w *writers) configs() typedcorev1.ConfigMapInterface {
	return w.admin.CoreV1().ConfigMaps(w.namespace)
}

// write changes one object after another. What the apiserver does not acknowledge is left as it is.
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
	const deletions = 6 // one write in as many
	if random.IntN(deletions) == 0 {
		if err := w.configs().Delete(ctx, name, metav1.DeleteOptions{}); err == nil {
			w.writes.Add(1)
		}
		return
	}
	_, _ = w.put(ctx, name, colours[random.IntN(len(colours))], n) // the apiserver may be away
}

// put creates or updates an object, and tells at which resourceVersion.
func (w *writers) put(ctx context.Context, name, colour string, n int) (rv uint64, err error) {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": colour}},
		Data:       map[string]string{"n": strconv.Itoa(n)},
	}
	got, err := w.configs().Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		got, err = w.configs().Create(ctx, object, metav1.CreateOptions{})
	}
	if err == nil {
		rv, err = strconv.ParseUint(got.ResourceVersion, 10, 64)
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

// mark writes what each selection sees last, and tells at which resourceVersions.
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

// pinned is an object that some watch by its name.
const pinned = "w-0-0"
