package watchcache

import "sync"

// Waiters are the readers that wait for the next publication. Without waiting readers, a
// publication costs one lock.
type Waiters struct {
	mu struct {
		sync.Mutex
		next chan struct{} // closed by the next publication; nil without waiting readers
	}
}

// Wait returns a channel that the next Release closes.
func (w *Waiters) Wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.next == nil {
		w.mu.next = make(chan struct{})
	}
	return w.mu.next
}

// Release wakes all readers that wait.
func (w *Waiters) Release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.next != nil {
		close(w.mu.next)
		w.mu.next = nil
	}
}
