package fair

import (
	"context"
	"sync"
	"time"
)

// Coalescer lets equal requests share a response. A flight is one request upstream.
//
// A reader must see every write from before it arrived. So only a flight that begins later may
// answer it. A reader that arrives during a flight waits for the next one, which all waiting
// readers share, so upstream sees one flight at a time. A reader whose flight has not begun after
// lateAfter sends its own request, because the flight before may hang.
type Coalescer[A any] struct {
	mu struct {
		sync.Mutex
		next map[string]*Flight[A] // by key, while a flight is under way; it may have no readers
	}
}

// Flight is a request upstream. Its leader must call Land.
type Flight[A any] struct {
	of      *Coalescer[A]
	key     string
	lead    chan struct{} // makes one waiting reader the leader
	landed  chan struct{} // closed when answer is set
	answer  A
	waiting int // number of waiting readers, with the leader if it waited; guarded by Coalescer.mu
}

// lateAfter limits a reader's wait for its flight to begin. It equals kube-apiserver's own limit.
const lateAfter = time.Minute

func (fs *Coalescer[A]) newFlight(key string) *Flight[A] {
	return &Flight[A]{
		of:     fs,
		key:    key,
		lead:   make(chan struct{}, 1),
		landed: make(chan struct{}),
	}
}

// join returns the flight that may answer a new request, and whether the caller leads this flight.
func (fs *Coalescer[A]) join(key string) (f *Flight[A], leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.next == nil {
		fs.mu.next = map[string]*Flight[A]{}
	}
	f = fs.mu.next[key]
	if f == nil {
		fs.mu.next[key] = fs.newFlight(key)
		return fs.newFlight(key), true
	}
	f.waiting++
	return f, false
}

// proceedLocked begins the next flight if readers wait for it.
func (fs *Coalescer[A]) proceedLocked(key string) {
	f := fs.mu.next[key]
	if f.waiting == 0 {
		delete(fs.mu.next, key)
		return
	}
	fs.mu.next[key] = fs.newFlight(key)
	f.lead <- struct{}{}
}

// Waiting returns the number of readers that wait for a next flight.
func (fs *Coalescer[A]) Waiting() (n int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.mu.next {
		n += f.waiting
	}
	return n
}

// Land gives the answer to the readers of the flight, and may begin the next flight. If the answer
// is zero, each of them must send its own request.
func (f *Flight[A]) Land(answer A) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.answer = answer
	close(f.landed)
	f.of.proceedLocked(f.key)
}

// leave removes a waiting reader. A flight without readers does not begin.
func (f *Flight[A]) leave() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return
	}
	select {
	case <-f.lead:
		f.of.proceedLocked(f.key)
	default:
	}
}

// await waits until the caller leads its flight, or it has landed. Else the caller has left it.
func (f *Flight[A]) await(ctx context.Context) (leads, landed bool) {
	late := time.NewTimer(lateAfter)
	defer late.Stop()
	for {
		select {
		case <-f.lead:
			return true, false
		case <-f.landed:
			return false, true
		case <-late.C:
			if f.begun() {
				continue
			}
		case <-ctx.Done():
		}
		f.leave()
		return false, false
	}
}

func (f *Flight[A]) begun() bool {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	return f.of.mu.next[f.key] != f
}

// Crowded reports whether several readers share a flight that has begun. No other can join it.
func (f *Flight[A]) Crowded() bool {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	return f.waiting > 1
}

// Join returns the answer of another flight, or a flight that the caller leads. If it returns
// neither, the caller must send a request of its own, or ctx has ended.
func (fs *Coalescer[A]) Join(ctx context.Context, key string) (answer A, leads *Flight[A]) {
	f, first := fs.join(key)
	if first {
		return answer, f
	}
	next, landed := f.await(ctx)
	switch {
	case next:
		return answer, f
	case landed:
		return f.answer, nil
	}
	return answer, nil
}
