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
