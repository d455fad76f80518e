package main

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// leases is the number of leases, one for each node of a cluster. No informer watches them.
const leases = 20

func leaseName(i int) string { return workload.NodeName(i % leases) }

func (b *bench) createLeases(ctx context.Context) error {
	for i := range leases {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName(i)}}
		if _, err := b.admin.CoordinationV1().Leases(metav1.NamespaceDefault).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("cannot create lease %s: %w", lease.Name, err)
		}
	}
	return nil
}

// duringWrites renews leases while do runs. So etcd's revision increases, but no collection
// changes.
func (b *bench) duringWrites(ctx context.Context, do func(ctx context.Context) error) error {
	const limit = 4 // in flight
	return workload.During(ctx, b.writes, limit, b.renewLease, do)
}

func (b *bench) renewLease(ctx context.Context, i int) error {
	patch := fmt.Appendf(nil, `{"spec":{"holderIdentity":"holder-%d"}}`, i)
	_, err := b.admin.CoordinationV1().Leases(metav1.NamespaceDefault).Patch(ctx, leaseName(i), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cannot renew lease %s: %w", leaseName(i), err)
	}
	return nil
}
