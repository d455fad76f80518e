package tree

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// manyEntries returns n entries, sorted by key.
func manyEntries(n int) []*object.Object {
	all := make([]*object.Object, n)
	for i := range all {
		all[i] = entry(fmt.Sprintf("namespace-%02d/pod-%06d", i%20, i), 100)
	}
	slices.SortFunc(all, func(a, b *object.Object) int { return strings.Compare(a.Key(), b.Key()) })
	return all
}

func BenchmarkTreeGet(b *testing.B) {
	all := manyEntries(100_000)
	t := Build(all, 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if t.Get(all[i*7919%len(all)].Key()) == nil {
			b.Fatal("not found")
		}
	}
}

func BenchmarkTreeSet(b *testing.B) {
	all := manyEntries(100_000)
	t := Build(all, 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t, _ = t.Set(all[i*7919%len(all)])
	}
}

func BenchmarkTreeSpans(b *testing.B) {
	t := Build(manyEntries(10_000), 0)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for span := range t.Spans("", "") {
			n += len(span.Objects())
		}
		if n != 10_000 {
			b.Fatal(n)
		}
	}
}

func BenchmarkTreeBuild(b *testing.B) {
	all := manyEntries(10_000)
	b.ReportAllocs()
	for b.Loop() {
		Build(all, 0)
	}
}
