package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// spent is a server's processor time for some work.
type spent struct {
	Units   int     `json:"units"`
	Seconds float64 `json:"cpuSeconds"` // total processor time
	Bytes   int64   `json:"bytes"`      // of one response
}

// each returns the processor time of one unit, in seconds.
func (s spent) each() float64 { return s.Seconds / float64(s.Units) }

// and adds a second run of the same work.
func (s spent) and(again spent) spent {
	return spent{s.Units + again.Units, s.Seconds + again.Seconds, again.Bytes}
}

// measureReads makes clients repeat a request until the server has used enough processor time for a
// measurement, and each client has a response. The first response to each client does not count.
func (b *bench) measureReads(ctx context.Context, s *server, r request, clients int) (spent, error) {
	var done, size atomic.Int64
	var failed error
	var once sync.Once
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) {
		once.Do(func() { failed = err })
		cancel()
	}
	var warm, ended sync.WaitGroup
	begin := make(chan struct{})
	warm.Add(clients)
	for range clients {
		ended.Go(func() {
			c, err := s.dial(ctx, readBuffer)
			if err != nil {
				fail(err)
				warm.Done()
				return
			}
			defer c.close()
			n, err := c.ask(r)
			if err != nil {
				fail(err)
			}
			size.Store(n)
			warm.Done()
			<-begin
			for ctx.Err() == nil {
				if _, err := c.ask(r); err != nil {
					fail(err)
					return
				}
				done.Add(1)
			}
		})
	}
	warm.Wait()
	before, err := s.cpu()
	if err != nil {
		fail(err)
	}
	close(begin)
	var taken time.Duration
	const look = 50 * time.Millisecond
	// enough is the processor time of a server that makes a measurement. After patience, less has to do.
	const enough, patience = 500 * time.Millisecond, 10 * time.Second
	for began := time.Now(); ctx.Err() == nil; {
		select {
		case <-time.After(look):
		case <-ctx.Done():
		}
		now, err := s.cpu()
		if err != nil {
			fail(err)
		}
		if taken = now - before; (taken >= enough || time.Since(began) > patience) && done.Load() >= int64(clients) {
			cancel()
		}
	}
	ended.Wait() // waits for requests in flight
	after, err := s.cpu()
	if err != nil {
		return spent{}, err
	}
	if failed != nil {
		return spent{}, failed
	}
	return spent{Units: int(done.Load()), Seconds: (after - before).Seconds(), Bytes: size.Load()}, nil
}
