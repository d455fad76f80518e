//go:build verify

package access

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
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

// The heap holds little for made-up tokens, whatever their length is.
func TestMemoryOfTokens(t *testing.T) {
	review := tokenReview(func(string) (bool, error) { return false, nil })
	tokens := newTokens(review, time.Hour, newMetrics(prometheus.NewRegistry()))
	before := cachetest.Heap()
	made := refusedMax / outcomeCost
	long := strings.Repeat("x", 10<<10)
	for i := range made {
		token := fmt.Sprint(i)
		if i%10 == 0 {
			token = long + token
		}
		if _, ok, err := tokens.AuthenticateToken(t.Context(), token); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if held := cachetest.Heap() - before; held > refusedMax+1<<20 {
		t.Errorf("%d made-up tokens take %d KiB", made, held>>10)
	}
	runtime.KeepAlive(tokens)
}

// The heap holds almost nothing for refused lists with large selectors.
func TestMemoryOfDecisions(t *testing.T) {
	a, _ := newTrial(t, Options{AllowTTL: time.Hour, DenyTTL: time.Hour})
	large := selecting(t, "bad", strings.Repeat("a.example.com/b!=c,", 5000)+"z", "").LabelSelectorRequirements
	before := cachetest.Heap()
	for i := range 200 {
		q := selecting(t, "bad", fmt.Sprintf("n=%d", i), "")
		q.LabelSelectorRequirements = append(q.LabelSelectorRequirements, large...)
		if _, _, err := a.Authorize(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	const allowance = 4 << 20 // for connections and buffers
	if held := cachetest.Heap() - before; held > allowance {
		t.Errorf("the heap has grown by %d KiB", held>>10)
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(large)
}
