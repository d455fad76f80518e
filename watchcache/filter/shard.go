package filter

import (
	"fmt"
	"math"
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

// Slice is a half of the hashes of a key, a quarter, and so on down to a 64th. Slices are numbered
// like the nodes of a binary tree whose root is 1, besides a bit for the key. The zero Slice means
// all hashes.
type Slice uint8

// sliceBits is the depth of the tree of slices.
const sliceBits = 6

// Key returns the key of a slice that is not zero.
func (s Slice) Key() ShardKey { return ShardKey(s >> (sliceBits + 1)) }

// SlicesOf returns the slices that have an object, the narrowest first.
func (k ShardKey) SlicesOf(o *object.Object) (all [sliceBits]Slice) {
	node := 1<<sliceBits | k.hash(o)>>(64-sliceBits)
	for i := range all {
		all[i] = Slice(uint64(k)<<(sliceBits+1) | node>>i)
	}
	return all
}

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

// slices returns the fewest slices that have all hashes of the shard, and no further 64th.
func (s *shard) slices() []Slice {
	var has uint64 // a bit for each 64th
	for _, r := range s.ranges {
		for i := r.from >> (64 - sliceBits); i <= r.last>>(64-sliceBits); i++ {
			has |= 1 << i
		}
	}
	return s.within(nil, has, 1, 1<<sliceBits)
}

// within appends the slices below a node. The node has the lowest bits of has: so many 64ths.
func (s *shard) within(all []Slice, has uint64, node Slice, bits int) []Slice {
	whole := uint64(math.MaxUint64) >> (64 - bits)
	switch has &= whole; {
	case has == 0:
		return all
	case has == whole && node == 1:
		return append(all, 0)
	case has == whole:
		return append(all, Slice(s.key)<<(sliceBits+1)|node)
	}
	return s.within(s.within(all, has, 2*node, bits/2), has>>(bits/2), 2*node+1, bits/2)
}
