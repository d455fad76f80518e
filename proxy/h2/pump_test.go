package h2

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// The pump takes each connection once, in the order in which they came, and leaves a share for others.
func TestPumpTakesEachConnection(t *testing.T) {
	var p pump
	const processors = 2
	p.mu.most, p.mu.running = processors, 1<<30 // it starts no goroutines
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	var due []*writer
	var batch [pumpBatch]*writer
	for range 5000 {
		for range random.IntN(2 * pumpBatch) {
			w := new(writer)
			p.add(w)
			due = append(due, w)
		}
		n := p.take(&batch)
		if want := min((len(due)+1)/processors, pumpBatch); n != want || !slices.Equal(batch[:n], due[:n]) {
			t.Fatalf("takes %d of %d, want the first %d", n, len(due), want)
		}
		due = due[n:]
	}
}
