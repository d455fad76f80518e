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
// wait twice the time of a direct request, but at most groupLate for its flight to begin. If the
// usual time of a flight is known, the next flight begins after a part of that time. Upstream then
// sees a few flights at a time.
//
// Pace is the mean time between the starts of two flights of a group. With a pace, a crowd costs
// upstream a bounded number of requests, and its readers wait a little longer. Burst flights may
// start ahead of the pace, so a few readers do not wait.
type Coalescer[A Answer] struct {
	Pace  time.Duration
	Burst int

	mu struct {
		sync.Mutex
		groups map[string]*group[A] // by key; removed after the last flight and the pace
	}
}

// Answer is the result of a flight. Its zero value means that readers cannot share the result.
type Answer interface {
	// LetGo subtracts n from the number of readers that hold the answer. It does nothing to the
	// zero value.
	LetGo(n int)
}

type group[A Answer] struct {
	up    int           // number of flights under way
	sent  time.Time     // the start of the last flight
	paced time.Time     // the time at which the flights so far would have started at the pace
	pause time.Duration // between starts while flights are under way
	timer *time.Timer   // for the next flight or the group's end; may be nil
	next  *flight[A]    // for readers since the last start; nil if there are none
}

type flight[A Answer] struct {
	lead    chan struct{} // makes one waiting reader the leader
	landed  chan struct{} // closed when answer is set
	answer  A
	waiting int // number of waiting readers, with the leader if it waited; guarded by Coalescer.mu
}

// groupMost limits the concurrent flights of a group. If a flight's time is known, the next flight
// begins after that time divided by groupPart. Otherwise it begins when the flight ends or, if upstream
// does not answer, after groupLate.
const groupMost, groupPart, groupLate = 8, 10, time.Minute

func newFlight[A Answer]() *flight[A] {
	return &flight[A]{lead: make(chan struct{}, 1), landed: make(chan struct{})}
}

// join returns the flight that may answer a new request, and whether the caller leads this flight.
// takes is the time that upstream needs for a flight, or 0 if it is unknown.
func (fs *Coalescer[A]) join(key string, takes time.Duration) (f *flight[A], leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.groups == nil {
		fs.mu.groups = map[string]*group[A]{}
	}
	of := fs.mu.groups[key]
	if of == nil {
		of = &group[A]{pause: groupLate}
		fs.mu.groups[key] = of
	}
	if takes > 0 {
		of.pause = takes / groupPart
	}
	if wait, ok := fs.due(of); ok && wait <= 0 && !of.gathers() {
		fs.begin(of)
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
func (fs *Coalescer[A]) due(of *group[A]) (wait time.Duration, ok bool) {
	wait = max(0, time.Until(of.paced)) - time.Duration(fs.Burst)*fs.Pace
	if of.up > 0 {
		wait = max(wait, of.pause-time.Since(of.sent))
	}
	return wait, of.up < groupMost
}

func (fs *Coalescer[A]) begin(of *group[A]) {
	of.up++
	of.sent = time.Now()
	if of.paced.Before(of.sent) {
		of.paced = of.sent
	}
	of.paced = of.paced.Add(fs.Pace)
}

// proceedLocked begins the next flight if readers wait for it. If the flight must wait, it sets a
// timer. It deletes a group without readers and flights whose pace is over.
func (fs *Coalescer[A]) proceedLocked(key string, of *group[A]) {
	wait, ok := fs.due(of)
	gathers := of.gathers()
	if !gathers {
		wait, ok = time.Until(of.paced), of.up == 0
	}
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
	case gathers:
		fs.begin(of)
		of.next.lead <- struct{}{}
		of.next = nil
	default:
		delete(fs.mu.groups, key)
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
	answer.LetGo(-f.waiting)
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
	f.answer.LetGo(1)
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

// pass makes another waiting reader the leader. It returns false if there is none.
func (fs *Coalescer[A]) pass(f *flight[A]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.waiting < 2 {
		return false
	}
	f.waiting--
	f.lead <- struct{}{}
	return true
}

// For says whose answer the answer of a flight is.
type For int

// Another means that the leader cannot fly, so another reader must lead.
const (
	Leader For = iota
	All
	Another
)

// Share returns the answer to a new request, from the caller's own flight or from another flight.
// If the answer is zero, it cannot be shared, and the caller must send its own request. takes is
// the time that upstream needs for a flight, or 0 if it is unknown. fly sends the request. Its
// argument reports whether several readers wait. flew reports whether the caller called fly. If ctx
// ends while the caller waits, the answer is zero.
func (fs *Coalescer[A]) Share(ctx context.Context, key string, takes time.Duration, fly func(crowd bool) (A, For)) (answer A, flew bool) {
	f, leads := fs.join(key, takes)
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
	passed := false
	defer func() { // after a panic, too
		if !passed {
			fs.land(key, f, common)
		}
	}()
	answer, whose := fly(fs.crowd(f))
	switch whose {
	case All:
		common = answer
	case Another:
		passed = fs.pass(f)
	case Leader:
	}
	return answer, true
}
