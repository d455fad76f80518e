package watch

import (
	"cmp"
	"runtime"
	"sync"
)

// Worker is a unit of work for a pump: a watch, or a connection with several watches.
type Worker interface {
	// Work does all work that is due, without waiting for a client.
	Work(s *Scratch)
}

// Pump runs workers in a goroutine for each processor. A worker must not be in the queue twice.
type Pump[W Worker] struct {
	Most int // maximum number of goroutines; 0 means the number of processors
	mu   struct {
		sync.Mutex
		most    int // Most, or the number of processors
		queue   []W // starts at head
		head    int
		running int
	}
}

// pumpBatch is the maximum number of workers taken from the queue at a time.
const pumpBatch = 16

// Add adds a worker to the queue. It does not block.
func (p *Pump[W]) Add(w W) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.mu.queue); n == cap(p.mu.queue) && p.mu.head > n/2 {
		rest := copy(p.mu.queue, p.mu.queue[p.mu.head:])
		clear(p.mu.queue[rest:])
		p.mu.queue, p.mu.head = p.mu.queue[:rest], 0
	}
	p.mu.queue = append(p.mu.queue, w)
	if p.mu.most == 0 {
		p.mu.most = cmp.Or(p.Most, runtime.GOMAXPROCS(0))
	}
	if p.mu.running < p.mu.most && p.mu.running < len(p.mu.queue)-p.mu.head {
		p.mu.running++
		go p.run()
	}
}

// run works until the queue is empty.
func (p *Pump[W]) run() {
	var batch [pumpBatch]W
	s := NewScratch()
	defer s.Free()
	for {
		n := p.take(&batch)
		if n == 0 {
			return
		}
		for _, w := range batch[:n] {
			w.Work(s)
		}
		s.Written()
		clear(batch[:n])
	}
}

// take removes workers from the front of the queue. If the queue is empty, take counts the
// goroutine as ended.
func (p *Pump[W]) take(batch *[pumpBatch]W) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Leave workers for the other goroutines.
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
