//go:build verify

package access

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// The heap holds no more for remembered outcomes than the store's own count.
func TestMemoryOfOutcomes(t *testing.T) {
	const most = 4 << 20
	before := cachetest.Heap()
	o := newReviewCache[string](most)
	reason := strings.Repeat("r", 100)
	for i := range 3 * most / outcomeCost {
		o.put("greedy", keyOf("greedy", i), strings.Clone(reason), len(reason), time.Hour)
	}
	if held := cachetest.Heap() - before; held > most {
		t.Errorf("the heap holds %d bytes for %d of the account", held, most)
	}
	runtime.KeepAlive(o)
}
