package fair

import (
	"context"
	"sync"
	"time"
)

// Flights let equal requests share an answer. A flight is one request upstream; a fleet is the
// flights of equal requests.
//
// A reader must see every write from before the reader arrived, so only a flight that begins after
// that may answer this reader. A reader that arrives during a flight waits for the next flight. All
// waiting readers share this flight, so upstream sees one flight at a time. Such a reader may wait
// twice the time of a direct request. So if the time of a flight is known, the next flight begins
// after a part of that time, and upstream sees a few flights at a time.
//
// With a pace, no flight begins within this time after another of its fleet. So a crowd costs
// upstream a bounded number of requests, and its readers wait a little longer.
type Flights[A Answer] struct {
	Pace time.Duration

	mu struct {
		sync.Mutex
		fleets map[string]*fleet[A] // by key; a fleet exists while a flight is under way, and for the pace
	}
}

// Answer is what a flight brings. Its zero value means that readers cannot share one.
type Answer interface {
	// LetGo subtracts n from the number of readers that hold the answer. It does nothing to the
	// zero value.
	LetGo(n int)
}

type fleet[A Answer] struct {
	up    int           // flights under way
	sent  time.Time     // the start of the last flight
	pause time.Duration // time from one start to the next while flights are under way; 0 means to wait for their end
	timed bool          // a timer is set for the pause
	next  *flight[A]    // for readers since the last start; nil without any
}

type flight[A Answer] struct {
	lead    chan struct{} // gives one waiting reader the lead
	landed  chan struct{} // closed when answer is set
	answer  A
	waiting int // readers that wait, the leader included if it waited; guarded by Flights.mu
}

// fleetMost bounds the flights of a fleet under way. If a flight's time is known, the next flight
// begins after that time divided by fleetPart.
const fleetMost, fleetPart = 8, 10

func newFlight[A Answer]() *flight[A] {
	return &flight[A]{lead: make(chan struct{}, 1), landed: make(chan struct{})}
}

// join returns the flight that may answer a new request, and whether the caller leads it. Takes is
// how long upstream takes for a flight, 0 if unknown.
func (fs *Flights[A]) join(key string, takes time.Duration) (f *flight[A], leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.fleets == nil {
		fs.mu.fleets = map[string]*fleet[A]{}
	}
	of := fs.mu.fleets[key]
	if of == nil {
		of = &fleet[A]{}
		fs.mu.fleets[key] = of
	}
	if takes > 0 {
		of.pause = takes / fleetPart
	}
	if wait, ok := fs.due(of); ok && wait <= 0 && !of.gathers() {
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

// gathers tells whether readers wait for the next flight.
func (of *fleet[A]) gathers() bool { return of.next != nil && of.next.waiting > 0 }

// due returns the time until the next flight may begin. It returns false if that depends on the end
// of another flight.
func (fs *Flights[A]) due(of *fleet[A]) (wait time.Duration, ok bool) {
	pause := fs.Pace
	if of.up > 0 {
		pause = max(pause, of.pause)
	}
	return pause - time.Since(of.sent), of.up == 0 || of.pause > 0 && of.up < fleetMost
}

func (of *fleet[A]) begin() {
	of.up++
	of.sent = time.Now()
}

// proceedLocked begins the next flight if readers wait for it, now or when the pause is over. It
// forgets a fleet without readers and flights.
func (fs *Flights[A]) proceedLocked(key string, of *fleet[A]) {
	wait, ok := fs.due(of)
	switch {
	case !ok, of.up > 0 && !of.gathers():
	case wait <= 0 && of.gathers():
		of.begin()
		of.next.lead <- struct{}{}
		of.next = nil
	case wait <= 0:
		delete(fs.mu.fleets, key)
	case !of.timed:
		of.timed = true
		time.AfterFunc(wait, func() {
			fs.mu.Lock()
			defer fs.mu.Unlock()
			if of.timed = false; fs.mu.fleets[key] == of {
				fs.proceedLocked(key, of)
			}
		})
	}
}

// Waiting counts the readers that wait for a next flight.
func (fs *Flights[A]) Waiting() (n int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, of := range fs.mu.fleets {
		if of.next != nil {
			n += of.next.waiting
		}
	}
	return n
}

// land hands out a flight's answer and may begin the next flight.
func (fs *Flights[A]) land(key string, f *flight[A], answer A) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.answer = answer
	answer.LetGo(-f.waiting)
	close(f.landed)
	fs.endLocked(key)
}

// endLocked counts a flight as over.
func (fs *Flights[A]) endLocked(key string) {
	of := fs.mu.fleets[key]
	of.up--
	fs.proceedLocked(key, of)
}

// leave removes a waiting reader. A flight without readers does not begin.
func (fs *Flights[A]) leave(key string, f *flight[A]) {
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

// crowd tells whether several readers share a flight that has begun. No further reader can join
// such a flight.
func (fs *Flights[A]) crowd(f *flight[A]) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.waiting > 1
}

// Share returns the answer to a new request: from the caller's own flight or from another flight.
// If the answer is zero, it cannot be shared, and the caller sends its own request. Takes is how
// long upstream takes for a flight, 0 if unknown. The argument of
// fly tells whether several readers wait. The result ok tells whether they may have the answer. If
// ctx ends while the caller waits, there is no answer.
func (fs *Flights[A]) Share(ctx context.Context, key string, takes time.Duration, fly func(crowd bool) (answer A, ok bool)) (answer A, flew bool) {
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
	defer func() { fs.land(key, f, common) }()
	answer, ok := fly(fs.crowd(f))
	if ok {
		common = answer
	}
	return answer, true
}
