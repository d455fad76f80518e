package proxy

import (
	"cmp"
	"sync"
	"time"
)

// patrol begins to watch for the clients of requests under way that are not answered at once, whose number is small: a
// goroutine that reads the client's connection, and its end, wake threads four times.
type patrol struct {
	every time.Duration // between two rounds; patrolEvery if it is 0

	mu struct {
		sync.Mutex
		running         bool
		recent, overdue []*exchange // since the last round, and those from before it
	}
}

const (
	// patrolEvery is between two rounds, patrolRest how long they go on without any request.
	patrolEvery = 10 * time.Millisecond
	patrolRest  = 100 * time.Millisecond
)

// add has the client of an exchange watched if that still goes on one round later, when it is two at most.
func (p *patrol) add(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.recent = append(p.mu.recent, x)
	if !p.mu.running {
		p.mu.running = true
		go p.run()
	}
}

func (p *patrol) run() {
	every := cmp.Or(p.every, patrolEvery)
	var overdue []*exchange
	for idle := time.Duration(0); ; idle += every {
		time.Sleep(every)
		var again bool
		if overdue, again = p.round(overdue, idle < patrolRest); !again {
			return
		}
		for _, x := range overdue {
			x.watchClient()
			idle = 0
		}
		clear(overdue)
	}
}

// round returns the exchanges that were there the last time, and keeps the memory that it is given for further ones.
// Without any exchange there is no further round, unless that is wanted.
func (p *patrol) round(memory []*exchange, wanted bool) (overdue []*exchange, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	overdue, p.mu.overdue, p.mu.recent = p.mu.overdue, p.mu.recent, memory[:0]
	p.mu.running = wanted || len(overdue)+len(p.mu.overdue) > 0
	return overdue, p.mu.running
}
