package tree

import "testing"

func BenchmarkTreeGet(b *testing.B) {
	all := numbered(100_000)
	t := Build(all, 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if t.Get(all[i*7919%len(all)].Key()) == nil {
			b.Fatal("not found")
		}
	}
}

func BenchmarkTreeSet(b *testing.B) {
	all := numbered(100_000)
	t := Build(all, 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t, _ = t.Set(all[i*7919%len(all)])
	}
}

func BenchmarkTreeSpans(b *testing.B) {
	t := Build(numbered(10_000), 0)
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
	all := numbered(10_000)
	b.ReportAllocs()
	for b.Loop() {
		Build(all, 0)
	}
}
