//go:build verify

package upstream

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Without the ledger, fewer than one in a hundred successive reads waits for a metadata list, even
// with frequent writes to other resources. If foreign writes are rare, the cache answers most
// reads.
func TestReadsBesideWrites(t *testing.T) {
	const answers = 5 * time.Millisecond
	for _, every := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, time.Second, 5 * time.Second, time.Minute} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				fill(f, feed.SmallObjects+1)
				feed := openFeed(t, f, allowDirect)
				f.delays(probeTakes, metadataTakes)
				random := rand.New(rand.NewPCG(cachetest.Seed(t), 2))
				reads, left, slow := 0, 0, 0
				next := time.Now()
				for began := time.Now(); time.Since(began) < 5*time.Minute; reads++ {
					if time.Now().After(next) {
						f.elsewhere()
						next = time.Now().Add(time.Duration(random.ExpFloat64() * float64(every)))
					}
					upstream, waited := readOrLeave(t, feed, 10, answers)
					if upstream {
						left++
						time.Sleep(answers)
					} else {
						time.Sleep(time.Millisecond) // the duration of the response
					}
					if waited > 2*answers {
						slow++
					}
				}
				t.Logf("of %d reads %d waited and %d were left, %d lists of metadata", reads, slow, left, f.count("metadata"))
				if waits := 2 * f.count("metadata"); slow > max(waits, 10) {
					t.Errorf("%d reads waited, want %d at most: for a list of metadata, one does, or two", slow, waits)
				}
				if slow > reads/100 {
					t.Errorf("%d of %d reads waited", slow, reads)
				}
				if every >= 5*time.Second && left > reads/2 {
					t.Errorf("%d of %d reads were left to upstream", left, reads)
				}
			})
		})
	}
}
