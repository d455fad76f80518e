package forward

import "sync"

// Admission is what a request holds while it is forwarded: slots, and its place in counts and
// metrics. It is released once, when the request has ended, whatever has ended it.
type Admission struct {
	mu struct {
		sync.Mutex
		released bool
		parts    []func()
	}
}

// Hold adds a part. giveBack is called when the admission is released, or now if it has been.
func (a *Admission) Hold(giveBack func()) {
	a.mu.Lock()
	released := a.mu.released
	if !released {
		a.mu.parts = append(a.mu.parts, giveBack)
	}
	a.mu.Unlock()
	if released {
		giveBack()
	}
}

// Release gives back all parts, in the order in which they were taken. Further calls do nothing.
func (a *Admission) Release() {
	a.mu.Lock()
	parts := a.mu.parts
	a.mu.released, a.mu.parts = true, nil
	a.mu.Unlock()
	for _, giveBack := range parts {
		giveBack()
	}
}
