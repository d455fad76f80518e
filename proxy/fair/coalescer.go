package fair

import (
	"context"
	"sync"
	"time"
)

// Coalescer lets equal requests share a response. A flight is one request upstream; a group is the
// flights of equal requests.
//
// A reader must see every write from before the reader arrived. So only a flight that begins later
// may answer this reader. A reader that arrives during a flight waits for the next flight. All
// waiting readers share this next flight, so upstream sees one flight at a time. Such a reader may
// wait twice the time of a direct request, but at most groupLate for its flight to begin.
type Coalescer[A any] struct {
	mu struct {
		sync.Mutex
		groups map[string]*group[A] // by key; removed after the last flight
	}
}

type group[A any] struct {
	up    int         // number of flights under way
	sent  time.Time   // the start of the last flight
	timer *time.Timer // for the next flight; may be nil
	next  *flight[A]  // for readers since the last start; nil if there are none
}

type flight[A any] struct {
	lead    chan struct{} // makes one waiting reader the leader
	landed  chan struct{} // closed when answer is set
	answer  A
	waiting int // number of waiting readers, with the leader if it waited; guarded by Coalescer.mu
}

// groupMost limits the concurrent flights of a group. The next flight begins when the flight ends or,
// if upstream does not answer, after groupLate.
const groupMost, groupLate = 8, time.Minute

func newFlight[A any]() *flight[A] {
	return &flight[A]{lead: make(chan struct{}, 1), landed: make(chan struct{})}
}

// join returns the flight that may answer a new request, and whether the caller leads this flight.
func (fs *Coalescer[A]) join(key string) (f *flight[A], leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.groups == nil {
		fs.mu.groups = map[string]*group[A]{}
	}
	of := fs.mu.groups[key]
	if of == nil {
		of = &group[A]{}
		fs.mu.groups[key] = of
	}
	if wait, ok := of.due(); ok && wait <= 0 && !of.gathers() {
		of.begin()
		return newFlight[A](), true
	}
	if of.next == nil {
		of.next = newFlight[A]()
	}
	f = of.next
	f.waiting++
	fs.proceedLocked(key, of)
	return f, false
}

// gathers reports whether readers wait for the next flight.
func (of *group[A]) gathers() bool { return of.next != nil && of.next.waiting > 0 }

// due returns the time until the next flight may begin. It returns false if the next flight must
// wait for the end of another flight.
func (of *group[A]) due() (wait time.Duration, ok bool) {
	if of.up > 0 {
		wait = groupLate - time.Since(of.sent)
	}
	return wait, of.up < groupMost
}

func (of *group[A]) begin() {
	of.up++
	of.sent = time.Now()
}

// proceedLocked begins the next flight if readers wait for it. If the flight must wait, it sets a
// timer. It deletes a group without readers and flights.
func (fs *Coalescer[A]) proceedLocked(key string, of *group[A]) {
	if !of.gathers() {
		if of.up == 0 {
			delete(fs.mu.groups, key)
		}
		return
	}
	wait, ok := of.due()
	switch {
	case !ok:
	case wait > 0:
		if of.timer != nil {
			of.timer.Reset(wait)
			return
		}
		of.timer = time.AfterFunc(wait, func() {
			fs.mu.Lock()
			defer fs.mu.Unlock()
			if fs.mu.groups[key] == of {
				fs.proceedLocked(key, of)
			}
		})
	default:
		of.begin()
		of.next.lead <- struct{}{}
		of.next = nil
	}
}

// Waiting returns the number of readers that wait for a next flight.
func (fs *Coalescer[A]) Waiting() (n int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, of := range fs.mu.groups {
		if of.next != nil {
			n += of.next.waiting
		}
	}
	return n
}

// land gives a flight's answer to its readers and may begin the next flight.
func (fs *Coalescer[A]) land(key string, f *flight[A], answer A) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.answer = answer
	close(f.landed)
	fs.endLocked(key)
}

// endLocked records the end of a flight.
func (fs *Coalescer[A]) endLocked(key string) {
	of := fs.mu.groups[key]
	of.up--
	fs.proceedLocked(key, of)
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
		fs.endLocked(key)
	default:
	}
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
// them, too. flew reports whether the caller called fly. If ctx ends while the caller waits, the answer
// is zero.
func (fs *Coalescer[A]) Share(ctx context.Context, key string, fly func(crowd bool) (_ A, all bool)) (answer A, flew bool) {
	f, leads := fs.join(key)
	if !leads {
		select {
		case <-f.lead:
		case <-f.landed:
			return f.answer, false
		case <-ctx.Done():
			fs.leave(key, f)
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
