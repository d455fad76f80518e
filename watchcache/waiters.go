package watchcache

import "sync"

// waiters lets readers wait for the next publication. Without waiting readers, it is cheap.
type waiters struct {
	mu struct {
		sync.Mutex
		next chan struct{} // closed by the next publication; nil without waiting readers
	}
}

// wait returns a channel that the next release closes.
func (w *waiters) wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.next == nil {
		w.mu.next = make(chan struct{})
	}
	return w.mu.next
}

func (w *waiters) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.next != nil {
		close(w.mu.next)
		w.mu.next = nil
	}
}
