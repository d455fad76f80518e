package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// stamp is the annotation with the time of an update, in nanoseconds since 1970.
const stamp = "demo.watchproxy/sent-at"

// writeLimit limits the updates in flight. At this limit the writer skips updates, so that the
// server determines the rate.
const writeLimit = 8

// target is a pod that can be updated.
type target struct{ namespace, name, node string }

// writer updates pods directly at the apiserver, as controllers and kubelets do.
type writer struct {
	client kubernetes.Interface
	pods   []target
	crowd  *crowd

	written atomic.Int64 // updates
	due     atomic.Int64 // handler calls that these updates must cause
	ack     latency      // from sending an update to the server's answer
}

func newWriter(client kubernetes.Interface, pods []target) *writer {
	return &writer{client: client, pods: pods}
}

// during updates pods at the given rate, per second, while do runs.
func (w *writer) during(ctx context.Context, rate int, do func(ctx context.Context) error) error {
	return workload.During(ctx, rate, writeLimit, w.update, do)
}

// update changes one pod: its labels, its annotations and its status in turn.
func (w *writer) update(ctx context.Context, i int) error {
	t := w.pods[rand.IntN(len(w.pods))]
	sent := time.Now()
	metadata := fmt.Sprintf(`"annotations":{%q:"%d"}`, stamp, sent.UnixNano())
	patch, subresources := "", []string(nil)
	switch i % 3 {
	case 0:
		patch = fmt.Sprintf(`{"metadata":{%s}}`, metadata)
	case 1:
		patch = fmt.Sprintf(`{"metadata":{%s,"labels":{"rollout":"r%d"}}}`, metadata, i)
	case 2:
		patch = fmt.Sprintf(`{"metadata":{%s},"status":{"message":"checked %d times"}}`, metadata, i)
		subresources = []string{"status"}
	}
	_, err := w.client.CoreV1().Pods(t.namespace).Patch(ctx, t.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if apierrors.IsNotFound(err) {
		return nil // deleted by a user of the demo
	}
	if err != nil {
		return fmt.Errorf("cannot update pod %s/%s: %w", t.namespace, t.name, err)
	}
	w.ack.observe(time.Since(sent))
	w.written.Add(1)
	w.due.Add(w.crowd.interested(t))
	return nil
}

// sentAt reads the stamp; ok is false if there is none.
func sentAt(annotations map[string]string) (at time.Time, ok bool) {
	ns, err := strconv.ParseInt(annotations[stamp], 10, 64)
	return time.Unix(0, ns), err == nil
}
