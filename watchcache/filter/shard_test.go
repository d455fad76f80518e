package filter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// whole is the end of the hashes: 2^64.
const whole = "0x10000000000000000"

func randomShard(r *rand.Rand) sharding.Selector {
	key := shardPaths[r.IntN(len(shardPaths))]
	var ranges []sharding.ShardRangeRequirement
	for range 1 + r.IntN(3) {
		from, end := fmt.Sprintf("0x%016x", r.Uint64()>>r.IntN(64)), fmt.Sprintf("0x%016x", r.Uint64()>>r.IntN(8))
		switch r.IntN(4) {
		case 0:
			from = "0x0000000000000000"
		case 1:
			end = whole
		}
		if !sharding.HexLess(from, end) {
			from, end = end, from
		}
		if sharding.HexLess(from, end) {
			ranges = append(ranges, sharding.ShardRangeRequirement{Key: key, Start: from, End: end})
		}
	}
	return sharding.NewSelector(ranges...)
}

// A shard's filter agrees with apimachinery's own selector. Each object that it selects meets one of
// its interests, and slices that the shard does not touch are none of them.
func TestShard(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	matched := 0
	for range 20000 {
		selector := randomShard(r)
		if selector.Empty() {
			continue
		}
		f, err := mustNew(t, pods, "", "", "").Shard(selector)
		if err != nil {
			t.Fatal(err)
		}
		meta := metav1.ObjectMeta{Name: "web", Namespace: fmt.Sprint("n", r.IntN(100)), UID: types.UID(fmt.Sprint(r.Uint64()))}
		o, err := pods.ParseObject(fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":%q,"uid":%q,"resourceVersion":"7"}}`, meta.Namespace, meta.UID))
		if err != nil {
			t.Fatal(err)
		}
		want, err := selector.Matches(&metav1.PartialObjectMetadata{ObjectMeta: meta})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Matches(o); got != want {
			t.Fatalf("%s selects %+v: %t, want %t", selector, meta, got, want)
		}
		interests := slices.Collect(f.Interests())
		if want {
			matched++
			meets := slices.Contains(interests, Interest{})
			for _, slice := range f.shard.key.SlicesOf(o) {
				meets = meets || slices.Contains(interests, Interest{Slice: slice})
			}
			if !meets {
				t.Fatalf("%s selects %+v, but has %v", selector, meta, interests)
			}
		}
		if len(interests) > 1<<sliceBits/2 || !f.Selective() {
			t.Fatalf("%s has %d interests, selective %t", selector, len(interests), f.Selective())
		}
	}
	if matched < 1000 {
		t.Errorf("only %d matches: test does not test", matched)
	}
}

func mustShard(t *testing.T, f *Filter, key ShardKey, start, end string) *Filter {
	t.Helper()
	f, err := f.Shard(sharding.NewSelector(sharding.ShardRangeRequirement{Key: shardPaths[key], Start: start, End: end}))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestShardInterests(t *testing.T) {
	const first, eighth = "0x0000000000000000", "0x2000000000000000"
	all := mustNew(t, pods, "", "", "")
	for name, test := range map[string]struct {
		of     *Filter
		want   int
		expect Interest
	}{
		"by UID":              {mustShard(t, all, ShardByUID, first, eighth), 1, Interest{Slice: 0b1000}},
		"by namespace":        {mustShard(t, all, ShardByNamespace, first, eighth), 1, Interest{Slice: 0b1_0001000}},
		"half":                {mustShard(t, all, ShardByUID, "0x8000000000000000", whole), 1, Interest{Slice: 0b11}},
		"one hash":            {mustShard(t, all, ShardByUID, "0xffffffffffffffff", whole), 1, Interest{Slice: 0b1111111}},
		"two hashes":          {mustShard(t, all, ShardByUID, "0x7fffffffffffffff", "0x8000000000000001"), 2, Interest{Slice: 0b1100000}},
		"all but one":         {mustShard(t, all, ShardByUID, first, "0xfc00000000000000"), 6, Interest{Slice: 0b1111110}},
		"all":                 {mustShard(t, all, ShardByUID, first, whole), 1, Interest{}},
		"all of a namespace":  {mustShard(t, mustNew(t, pods, "a", "", ""), ShardByUID, first, whole), 1, Interest{By: Namespace, Value: "a"}},
		"up to a slice":       {mustShard(t, all, ShardByUID, first, "0x0400000000000000"), 1, Interest{Slice: 0b1000000}},
		"in a namespace":      {mustShard(t, mustNew(t, pods, "a", "", ""), ShardByUID, first, eighth), 1, Interest{Namespace, "a", 0b1000}},
		"of that namespace":   {mustShard(t, mustNew(t, pods, "a", "", ""), ShardByNamespace, first, eighth), 1, Interest{By: Namespace, Value: "a"}},
		"of a node":           {mustShard(t, mustNew(t, pods, "", "", "spec.nodeName=n1"), ShardByUID, first, eighth), 1, Interest{By: 0, Value: "n1"}},
		"of many namespaces":  {mustShard(t, all.Among([]string{"a", "b"}), ShardByUID, first, eighth), 1, Interest{Slice: 0b1000}},
		"of no namespace":     {mustShard(t, all, ShardByUID, first, eighth).Among(nil), 1, Interest{Slice: 0b1000}},
		"of nodes themselves": {mustShard(t, mustNew(t, nodes, "", "", ""), ShardByUID, first, eighth), 1, Interest{Slice: 0b1000}},
	} {
		got := slices.Collect(test.of.Interests())
		if len(got) != test.want || !slices.Contains(got, test.expect) {
			t.Errorf("%s: interests are %v, want %d with %v", name, got, test.want, test.expect)
		}
	}
	if a, b := mustShard(t, all, ShardByUID, first, eighth), mustShard(t, all, ShardByUID, first, whole); a.ID() == b.ID() || a.ID() == all.ID() {
		t.Error("two selections have one ID")
	}
	for _, key := range []ShardKey{ShardByUID, ShardByNamespace} {
		of := key.SlicesOf(&object.Object{})
		for i, s := range of {
			if s.Key() != key || i > 0 && s&0x7f != of[i-1]&0x7f>>1 || s&0x7f < 2 {
				t.Errorf("slices by %d are %b", key, of)
			}
		}
	}
}

func TestShardErrors(t *testing.T) {
	for _, r := range []sharding.ShardRangeRequirement{
		{Key: "object.metadata.name", Start: "0x0000000000000000", End: whole},
		{Key: shardPaths[0], Start: "x", End: whole},
		{Key: shardPaths[0], Start: "0x8000000000000000", End: "0x8000000000000000"},
	} {
		if _, err := mustNew(t, pods, "", "", "").Shard(sharding.NewSelector(r)); err == nil {
			t.Errorf("%v is a shard", r)
		}
	}
}

// A range has its start, but not its end.
func TestShardBounds(t *testing.T) {
	o, err := pods.ParseObject([]byte(`{"metadata":{"name":"web","namespace":"a","uid":"u","resourceVersion":"7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	h := ShardByUID.hash(o)
	before, at, after := fmt.Sprintf("0x%016x", h-1), fmt.Sprintf("0x%016x", h), fmt.Sprintf("0x%016x", h+1)
	all := mustNew(t, pods, "", "", "")
	for _, c := range []struct {
		start, end string
		has        bool
	}{{at, after, true}, {before, at, false}, {after, whole, false}, {at, whole, true}} {
		if got := mustShard(t, all, ShardByUID, c.start, c.end).Matches(o); got != c.has {
			t.Errorf("[%s, %s) has %s: %t", c.start, c.end, at, got)
		}
	}
	const last = "0xffffffffffffffff"
	for end, want := range map[string]hashRange{whole: {h, math.MaxUint64}, last: {h, math.MaxUint64 - 1}} {
		if got := mustShard(t, all, ShardByUID, at, end).shard.ranges[0]; got != want {
			t.Errorf("[%s, %s) is %x", at, end, got)
		}
	}
}
