package linearizability

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// scribe writes a ledger's objects directly to the apiserver.
type scribe struct {
	ledger *ledger
	admin  *kubernetes.Clientset
	random *rand.Rand
}

// write deletes an object if gone is true; otherwise it creates or updates it.
func (o *scribe) write(ctx context.Context, object int, gone bool, colour int) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.Limit)
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
	version := uint64(0) // not every deletion returns one
	if !gone {
		if version, err = strconv.ParseUint(config.ResourceVersion, 10, 64); err != nil {
			return fmt.Errorf("write %d of %s: resourceVersion: %w", w.n, e.name, err)
		}
	}
	o.ledger.acknowledge(object, version)
	return nil
}

// fill creates every share-th object, beginning with the object first.
func (o *scribe) fill(ctx context.Context, first, share int) error {
	for object := first; object < len(o.ledger.objects); object += share {
		if err := o.write(ctx, object, false, o.random.IntN(len(colours))); err != nil {
			return err
		}
	}
	return nil
}

// scribble changes every share-th object, beginning with the object first, until ctx ends. It
// changes that first object most often.
func (o *scribe) scribble(ctx context.Context, first, share int, pace time.Duration) error {
	timer := time.NewTimer(pace)
	defer timer.Stop()
	for {
		timer.Reset(time.Duration(o.random.Int64N(2 * int64(pace)))) // random, so that scribes do not run in step
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		object := first
		if o.random.IntN(2) == 0 {
			object += share * o.random.IntN(len(o.ledger.objects)/share)
		}
		const deletions = 5 // one in five writes
		gone := o.ledger.last(object).in(anything) && o.random.IntN(deletions) == 0
		// If ctx ends, the write must still finish, because its outcome must be known.
		if err := o.write(context.WithoutCancel(ctx), object, gone, o.random.IntN(len(colours))); err != nil {
			return err
		}
	}
}

// writeElsewhere writes to another resource, so that upstream's revision is ahead of the stream. It
// writes secrets, which the proxy does not watch, or leases, which it may watch.
func (o *scribe) writeElsewhere(ctx context.Context, pace time.Duration, leases bool) error {
	write := func(ctx context.Context, meta metav1.ObjectMeta) error {
		_, err := o.admin.CoreV1().Secrets(meta.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
		return err
	}
	if leases {
		write = func(ctx context.Context, meta metav1.ObjectMeta) error {
			_, err := o.admin.CoordinationV1().Leases(meta.Namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: meta}, metav1.CreateOptions{})
			return err
		}
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("noise-%d", i), Namespace: o.ledger.namespaces[0]}
		if err := write(context.WithoutCancel(ctx), meta); err != nil {
			return fmt.Errorf("write elsewhere: %w", err)
		}
	}
}
