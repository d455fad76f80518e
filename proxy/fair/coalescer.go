package fair

import (
	"context"
	"sync"
	"time"
)

// Coalescer lets equal requests share a response. A flight is one request upstream.
//
// A reader must see every write from before the reader arrived. So only a flight that begins later
// may answer this reader. A reader that arrives during a flight waits for the next flight, which all
// waiting readers share, so upstream sees one flight at a time. A reader whose flight has not begun after
// lateAfter sends its own request, because the flight before may hang.
type Coalescer[A any] struct {
	mu struct {
		sync.Mutex
		next map[string]*flight[A] // by key, while a flight is under way; it may have no readers
	}
}

type flight[A any] struct {
	lead    chan struct{} // makes one waiting reader the leader
	landed  chan struct{} // closed when answer is set
	answer  A
	waiting int // number of waiting readers, with the leader if it waited; guarded by Coalescer.mu
}

// lateAfter limits a reader's wait for its flight to begin. It equals kube-apiserver's own limit.
const lateAfter = time.Minute

func newFlight[A any]() *flight[A] {
	return &flight[A]{lead: make(chan struct{}, 1), landed: make(chan struct{})}
}

// join returns the flight that may answer a new request, and whether the caller leads this flight.
func (fs *Coalescer[A]) join(key string) (f *flight[A], leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.next == nil {
		fs.mu.next = map[string]*flight[A]{}
	}
	f = fs.mu.next[key]
	if f == nil {
		fs.mu.next[key] = newFlight[A]()
		return newFlight[A](), true
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
	fs.mu.next[key] = newFlight[A]()
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

// land gives a flight's answer to its readers and may begin the next flight.
func (fs *Coalescer[A]) land(key string, f *flight[A], answer A) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.answer = answer
	close(f.landed)
	fs.proceedLocked(key)
}

// leave removes a waiting reader. A flight without readers does not begin.
func (fs *Coalescer[A]) leave(key string, f *flight[A]) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return
	}
	select {
	case <-f.lead:
		fs.proceedLocked(key)
	default:
	}
}

// await waits until the caller leads a flight that it has joined, or the flight has landed. Otherwise the
// caller has left.
func (fs *Coalescer[A]) await(ctx context.Context, key string, f *flight[A]) (leads, landed bool) {
	late := time.NewTimer(lateAfter)
	defer late.Stop()
	for {
		select {
		case <-f.lead:
			return true, false
		case <-f.landed:
			return false, true
		case <-late.C:
			if fs.begun(key, f) {
				continue
			}
		case <-ctx.Done():
		}
		fs.leave(key, f)
		return false, false
	}
}

func (fs *Coalescer[A]) begun(key string, f *flight[A]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.mu.next[key] != f
}

// crowd reports whether several readers share a flight that has begun. No further reader can join
// such a flight.
func (fs *Coalescer[A]) crowd(f *flight[A]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.waiting > 1
}

// Share returns the answer to a new request, from the caller's own flight or from another flight.
// If the answer is zero, it cannot be shared, and the caller must send its own request. fly sends the
// request. Its argument reports whether several readers wait, and all reports whether its answer is for
// them, too. flew reports whether the caller called fly. If ctx ends while the caller waits, the answer is
// zero.
func (fs *Coalescer[A]) Share(ctx context.Context, key string, fly func(crowd bool) (_ A, all bool)) (answer A, flew bool) {
	f, leads := fs.join(key)
	if !leads {
		leads, landed := fs.await(ctx, key, f)
		switch {
		case landed:
			return f.answer, false
		case !leads:
			return answer, false
		}
	}
	var common A
	defer func() { fs.land(key, f, common) }() // after a panic, too
	answer, all := fly(fs.crowd(f))
	if all {
		common = answer
	}
	return answer, true
}
