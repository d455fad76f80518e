package forward

import (
	"context"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// flights lets forwarded gets and lists that are the same in every respect that
// upstream could see share one answer.
//
// Only a request that is sent after a reader came may answer it, for what was
// written before it came has to be seen. So a reader that comes while one is under way
// waits for the next one, which all of them share: upstream sees one at a time. To wait for
// two takes twice as long as without us. So where it is known how long upstream takes, the next
// begins after a part of that; then upstream sees a few at a time.
type flights struct {
	mu struct {
		sync.Mutex
		fleets map[string]*fleet // of each key that something is under way for
	}
}

// fleet are the flights of a key.
type fleet struct {
	up    int           // how many are under way, whose answers have not come
	sent  time.Time     // when the last of them was
	pause time.Duration // after which the next may begin though others are under way; 0 for never
	timed bool          // a timer is set for that
	next  *flight       // gathers who comes after it was sent; nil if nobody has
}

// flight is one request upstream.
type flight struct {
	lead    chan struct{}      // gives one of those who wait the lead
	landed  chan struct{}      // closed when answer is set
	answer  *exchange.Response // nil if it cannot be shared
	waiting int                // how many wait for it, whoever leads it included if he waited; guarded by flights.mu
}

// fleetMost is how many flights of a key are under way at most, if the next need not wait. FleetPart
// is the part of their time after which the next begins.
const fleetMost, fleetPart = 8, 10

func newFlight() *flight {
	return &flight{lead: make(chan struct{}, 1), landed: make(chan struct{})}
}

// join returns the flight that may answer a request that came just now, and
// whether the caller has to fly it. Upstream takes so long for it, or 0 if that is not known.
func (fs *flights) join(key string, takes time.Duration) (f *flight, leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.fleets == nil {
		fs.mu.fleets = map[string]*fleet{}
	}
	of := fs.mu.fleets[key]
	if of == nil {
		of = &fleet{}
		fs.mu.fleets[key] = of
	}
	if takes > 0 {
		of.pause = takes / fleetPart
	}
	if !of.gathers() && of.ready() {
		of.begin()
		return newFlight(), true
	}
	if of.next == nil {
		of.next = newFlight()
	}
	f = of.next
	f.waiting++
	fs.proceedLocked(of)
	return f, false
}

// gathers tells whether anybody waits for the next flight.
func (of *fleet) gathers() bool { return of.next != nil && of.next.waiting > 0 }

// ready tells whether a flight may begin.
func (of *fleet) ready() bool {
	return of.up == 0 || of.pause > 0 && of.up < fleetMost && time.Since(of.sent) >= of.pause
}

func (of *fleet) begin() {
	of.up++
	of.sent = time.Now()
}

// proceedLocked lets the next flight begin, if anybody waits for it and it is time, or sees to it that it will when it is.
func (fs *flights) proceedLocked(of *fleet) {
	switch {
	case !of.gathers():
	case of.ready():
		of.begin()
		of.next.lead <- struct{}{}
		of.next = nil
	case of.pause > 0 && of.up < fleetMost && !of.timed:
		of.timed = true
		time.AfterFunc(time.Until(of.sent.Add(of.pause)), func() {
			fs.mu.Lock()
			defer fs.mu.Unlock()
			of.timed = false
			fs.proceedLocked(of)
		})
	}
}

// waiting is how many wait for the next flight of any key.
func (fs *flights) waiting() (n int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, of := range fs.mu.fleets {
		if of.next != nil {
			n += of.next.waiting
		}
	}
	return n
}

// land hands out a flight's answer and lets the next one begin.
func (fs *flights) land(key string, f *flight, answer *exchange.Response) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.answer = answer
	answer.LetGo(-f.waiting)
	close(f.landed)
	fs.endLocked(key)
}

// endLocked takes one out of those that are under way.
func (fs *flights) endLocked(key string) {
	of := fs.mu.fleets[key]
	of.up--
	fs.proceedLocked(of)
	if of.up == 0 {
		delete(fs.mu.fleets, key)
	}
}

// leave takes somebody out of those who wait. If the lead was given to nobody but him,
// the flight does not take place.
func (fs *flights) leave(key string, f *flight) {
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

// crowd tells whether others share a flight. Nobody can join it any more.
func (fs *flights) crowd(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.waiting > 1
}

// share returns the answer to a request that came just now: by flying it, or by
// waiting for another one who does. A nil answer means that it cannot be shared
// and the caller has to ask alone. Fly is told whether others wait, and says
// whether they may have the answer, too. If ctx ends while the caller waits, nobody
// wants an answer, and there is none.
func (fs *flights) share(ctx context.Context, key string, takes time.Duration, fly func(crowd bool) (answer *exchange.Response, ok bool)) (answer *exchange.Response, flew bool) {
	f, leads := fs.join(key, takes)
	if !leads {
		select {
		case <-f.lead:
		case <-f.landed:
			return f.answer, false
		case <-ctx.Done():
			fs.leave(key, f)
			return nil, false
		}
	}
	var common *exchange.Response
	defer func() { fs.land(key, f, common) }()
	answer, ok := fly(fs.crowd(f))
	if ok {
		common = answer
	}
	return answer, true
}
