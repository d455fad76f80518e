package watchcache

import (
	"fmt"
	"math/rand/v2"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/watchcache/filter"
)

// RandomShard draws a range of an eighth of the hashes, or more.
func RandomShard(r *rand.Rand) sharding.Selector {
	from := r.IntN(8)
	end := fmt.Sprintf("0x%x000000000000000", min(2*(from+1+r.IntN(8)), 16))
	return sharding.NewSelector(sharding.ShardRangeRequirement{
		Key: Pick(r, "object.metadata.uid", "object.metadata.uid", "object.metadata.namespace"), Start: fmt.Sprintf("0x%x000000000000000", 2*from), End: end,
	})
}

// InShard limits a filter to a shard.
func InShard(tb testing.TB, f *filter.Filter, shard sharding.Selector) *filter.Filter {
	tb.Helper()
	f, err := f.Shard(shard)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// InShard is apimachinery's own matching of shards. A nil selector matches all pods.
func (p Pod) InShard(shard sharding.Selector) bool {
	if shard == nil {
		return true
	}
	is, err := shard.Matches(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, UID: types.UID(p.UID)}})
	if err != nil {
		panic(err)
	}
	return is
}
