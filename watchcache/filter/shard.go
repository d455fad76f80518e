package filter

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/sharding"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// shard is a part of a collection (KEP-5866): the objects whose key has its hash in one of some
// ranges.
type shard struct {
	key    ShardKey
	ranges []hashRange
	id     string
}

// hashRange has the hashes from ≤ h ≤ last.
type hashRange struct{ from, last uint64 }

// ShardKey is what of an object decides on its shard.
type ShardKey int

// The keys, as shard selectors name them.
const (
	ShardByUID ShardKey = iota
	ShardByNamespace
	shardKeys
)

var shardPaths = [shardKeys]string{"object.metadata.uid", "object.metadata.namespace"}

// hash returns the FNV-1a hash of an object's key.
func (k ShardKey) hash(o *object.Object) uint64 {
	text := o.UID()
	if k == ShardByNamespace {
		text = o.Namespace()
	}
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * prime
	}
	return h
}

// Of returns the slice of an object.
func (k ShardKey) Of(o *object.Object) Slice { return k.slice(k.hash(o)) }

// Slice is a 64th of the hashes of a key. The zero Slice means all hashes.
type Slice uint8

const sliceBits = 6

func (k ShardKey) slice(hash uint64) Slice {
	return 1 + Slice(k)<<sliceBits + Slice(hash>>(64-sliceBits))
}

// Key returns the key of a slice that is not zero.
func (s Slice) Key() ShardKey { return ShardKey((s - 1) >> sliceBits) }

// Shard returns the filter for the objects that a shard selector matches, too. It fails if the
// selector has a key that is not known.
func (f *Filter) Shard(selector sharding.Selector) (*Filter, error) {
	s := &shard{id: selector.String()}
	for _, r := range selector.Requirements() {
		key := slices.Index(shardPaths[:], r.Key)
		from, err := strconv.ParseUint(r.Start, 0, 64)
		if key < 0 || err != nil || !sharding.HexLess(r.Start, r.End) {
			return nil, fmt.Errorf("shard selector %s: not a range of hashes of a known key", selector)
		}
		end, _ := strconv.ParseUint(r.End, 0, 64) // 2^64 is out of range, and becomes the largest number
		last := end - 1
		if len(r.End) > len(r.Start) {
			last = end
		}
		s.key, s.ranges = ShardKey(key), append(s.ranges, hashRange{from, last})
	}
	sharded := *f
	sharded.shard, sharded.selective = s, true
	sharded.cost += hashCost + len(s.ranges)
	return &sharded, nil
}

// hashCost is the cost of a hash, in comparisons.
const hashCost = 2

func (s *shard) matches(o *object.Object) bool {
	h := s.key.hash(o)
	return slices.ContainsFunc(s.ranges, func(r hashRange) bool { return r.from <= h && h <= r.last })
}

// slices yields each slice that has hashes of the shard once.
func (s *shard) slices(yield func(Slice) bool) {
	var has uint64 // a bit for each slice
	for _, r := range s.ranges {
		for i := r.from >> (64 - sliceBits); i <= r.last>>(64-sliceBits); i++ {
			has |= 1 << i
		}
	}
	for i := range uint64(1) << sliceBits {
		if has&(1<<i) != 0 && !yield(s.key.slice(i<<(64-sliceBits))) {
			return
		}
	}
}
