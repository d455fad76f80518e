package h2

import (
	"runtime"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/watch"
)

// pump lets connections with due events work, in a goroutine for each processor. A connection must
// not be in the queue twice.
type pump struct {
	mu struct {
		sync.Mutex
		most    int       // maximum number of goroutines; 0 until the first connection is added
		queue   []*writer // starts at head
		head    int
		running int
	}
}

// pumpBatch is the maximum number of connections taken from the queue at a time.
const pumpBatch = 16

// add adds a connection to the queue. It does not block.
func (p *pump) add(w *writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.mu.queue); n == cap(p.mu.queue) && p.mu.head > n/2 {
		rest := copy(p.mu.queue, p.mu.queue[p.mu.head:])
		clear(p.mu.queue[rest:])
		p.mu.queue, p.mu.head = p.mu.queue[:rest], 0
	}
	p.mu.queue = append(p.mu.queue, w)
	if p.mu.most == 0 {
		p.mu.most = runtime.GOMAXPROCS(0)
	}
	if p.mu.running < p.mu.most && p.mu.running < len(p.mu.queue)-p.mu.head {
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
	share := (len(p.mu.queue) - p.mu.head + p.mu.most - 1) / p.mu.most
	n := copy(batch[:min(share, pumpBatch)], p.mu.queue[p.mu.head:])
	clear(p.mu.queue[p.mu.head:][:n])
	if p.mu.head += n; p.mu.head == len(p.mu.queue) {
		p.mu.queue, p.mu.head = p.mu.queue[:0], 0
	}
	if n == 0 {
		p.mu.running--
	}
	return n
}
