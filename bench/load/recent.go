package main

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// foreignObjects is the number of leases, and of config maps, that are written.
const foreignObjects = 50

// recent measures reads of the most recent state, while leases and config maps are written, but not
// the listed collection. Before a turn, one client reads: the proxy must find the other resources.
func (b *bench) recent(rate, clients int, r request) func(context.Context, *server) (sample, error) {
	return func(ctx context.Context, s *server) (got sample, err error) {
		err = workload.During(ctx, rate, writeLimit, b.writeForeign, func(ctx context.Context) error {
			const warm = 3 // turns
			for range warm {
				if _, err := b.reads(1, road{}, r)(ctx, s); err != nil {
					return err
				}
			}
			got, err = b.reads(clients, road{}, r)(ctx, s)
			return err
		})
		if s == b.direct {
			got.cpu = 0 // most of it is for the writes
		}
		return got, err
	}
}

// makeForeign creates the objects of the other writes.
func (b *bench) makeForeign(ctx context.Context) error {
	return workload.Parallel(ctx, foreignObjects, writeLimit, func(ctx context.Context, i int) error {
		meta := metav1.ObjectMeta{Name: foreign(i), Namespace: metav1.NamespaceDefault}
		if _, err := b.admin.CoordinationV1().Leases(meta.Namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := b.admin.CoreV1().ConfigMaps(meta.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
		return err
	})
}

func foreign(i int) string { return fmt.Sprintf("foreign-%d", i%foreignObjects) }

func (b *bench) writeForeign(ctx context.Context, i int) (err error) {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, i)
	if i%2 == 0 {
		_, err = b.admin.CoordinationV1().Leases(metav1.NamespaceDefault).
			Patch(ctx, foreign(i/2), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	_, err = b.admin.CoreV1().ConfigMaps(metav1.NamespaceDefault).Patch(ctx, foreign(i/2), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
