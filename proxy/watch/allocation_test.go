//go:build !race

package watch

import (
	"io"
	"math"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// The delivery of an event allocates nothing.
func TestEventAllocatesNothing(t *testing.T) {
	const ahead = 1000
	c, initial := cachetest.Roomy(t)
	out := &exchange.ChunkWriter{To: io.Discard}
	w := opened(t, paramsOf(t, c, initial), out)
	objects := make([]*object.Object, ahead)
	for i := range objects {
		objects[i] = cachetest.ConfigMap(t, 0, i+10)
	}
	cachetest.Apply(t, c, objects...) // all allocations except the delivery's
	var one [1]watchcache.Delta
	deliver := func() {
		polled, _, err := w.place.cursor.Poll(one[:0], 1, math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		for i := range polled {
			if err := w.encoder.append(out, &polled[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	deliver()
	if got := testing.AllocsPerRun(50, deliver); got > 0 {
		t.Errorf("%v allocations", got)
	}
}
