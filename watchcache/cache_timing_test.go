package watchcache

import (
	"fmt"
	"math"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// benchCache returns a cache of 10,000 pods on 5,000 nodes.
func benchCache(b *testing.B) (*Cache, []*object.Object) {
	b.Helper()
	objects := make([]*object.Object, 10_000)
	for i := range objects {
		objects[i] = Pod{
			Namespace: fmt.Sprintf("namespace-%02d", i/500), Name: fmt.Sprintf("pod-%05d", i), UID: "u",
			RV: uint64(i) + 1, Node: fmt.Sprint("node-", i%5000), Pad: 1000,
		}.Object()
	}
	c := New(*Pods, Limits{Age: time.Minute, Events: 10_000, Bytes: 64 << 20})
	c.Writer().Reset(objects, 10_000)
	return c, objects
}

// update returns the next version of an object, without the cost of parsing.
func update(o *object.Object, rv uint64) Change {
	return Change{Object: o.At(rv)}
}

func BenchmarkApply(b *testing.B) {
	narrow := func(i int) string { return fmt.Sprint("spec.nodeName=node-", i%5000) }
	wide := func(int) string { return "" }
	for _, bench := range []struct {
		name    string
		cursors int
		fields  func(i int) string
		batch   int
	}{
		{"no cursors", 0, wide, 1},
		{"1000 wide", 1000, wide, 1},
		{"1000 wide, batches of 64", 1000, wide, 64},
		{"5000 narrow", 5000, narrow, 1},
	} {
		b.Run(bench.name, func(b *testing.B) {
			c, objects := benchCache(b)
			for i := range bench.cursors {
				f := Select(b, Pods, "", nil, fields.ParseSelectorOrDie(bench.fields(i)))
				cursor, err := c.Watch(f, 10_000)
				if err != nil {
					b.Fatal(err)
				}
				defer cursor.Close()
			}
			rv := uint64(10_000)
			changes := make([]Change, 0, bench.batch)
			b.ReportAllocs()
			for b.Loop() {
				if rv++; len(changes) < cap(changes) {
					changes = append(changes, update(objects[rv*7919%10_000], rv))
				}
				if len(changes) == cap(changes) {
					Apply(b, c, changes...)
					changes = changes[:0]
				}
			}
		})
	}
}

func BenchmarkPoll(b *testing.B) {
	for name, events := range map[string]int{"nothing": 0, "one event": 1, "256 events": 256} {
		b.Run(name, func(b *testing.B) {
			c, objects := benchCache(b)
			f := Select(b, Pods, "", nil, nil)
			cursor, err := c.Watch(f, 10_000)
			if err != nil {
				b.Fatal(err)
			}
			defer cursor.Close()
			for i := range events {
				Apply(b, c, update(objects[i], 10_001+uint64(i)))
			}
			deltas := make([]Delta, 0, 256)
			b.ReportAllocs()
			for b.Loop() {
				cursor.next, cursor.behind = c.view.Load().end-uint64(events), events > 0
				if deltas, _, err = cursor.Poll(deltas[:0], 1000, math.MaxInt); err != nil || len(deltas) != events {
					b.Fatalf("%d deltas, %v", len(deltas), err)
				}
			}
		})
	}
}
