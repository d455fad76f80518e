package h2

import (
	"runtime"
	"sync"

	"k8s.io/utils/buffer"

	"github.com/watchproxy/watchproxy/proxy/watch"
)

// pump lets connections with due events work, in a goroutine for each processor. A connection must
// not be in the queue twice.
type pump struct {
	mu struct {
		sync.Mutex
		most    int // maximum number of goroutines; 0 until the first connection is added
		queue   buffer.TypedRingGrowing[*writer]
		running int
	}
}

// pumpBatch is the maximum number of connections taken from the queue at a time.
const pumpBatch = 16

// add adds a connection to the queue. It does not block.
func (p *pump) add(w *writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.queue.WriteOne(w)
	if p.mu.most == 0 {
		p.mu.most = runtime.GOMAXPROCS(0)
	}
	if p.mu.running < p.mu.most && p.mu.running < p.mu.queue.Len() {
		p.mu.running++
		go p.run()
	}
}

func (p *pump) run() {
	var batch [pumpBatch]*writer
	s := watch.NewScratch()
	defer s.Free()
	for {
		n := p.take(&batch)
		if n == 0 {
			return
		}
		for _, w := range batch[:n] {
			w.work(s)
		}
		s.Written()
		clear(batch[:n])
	}
}

// take removes connections from the queue. If there are none, it counts the goroutine as ended.
func (p *pump) take(batch *[pumpBatch]*writer) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Leave connections for the other goroutines.
	share := (p.mu.queue.Len() + p.mu.most - 1) / p.mu.most
	n := min(share, pumpBatch)
	for i := range n {
		batch[i], _ = p.mu.queue.ReadOne()
	}
	if n == 0 {
		p.mu.running--
	}
	return n
}
