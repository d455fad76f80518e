package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// crowd is a number of open watches at one server.
type crowd struct {
	server   *server
	watchers []*watcher
	got      atomic.Int64 // events of all watches
	lost     atomic.Int64 // watches that ended
	reading  sync.WaitGroup
}

// watcher records when events arrive. Each event ends with a line feed. The k-th event belongs to
// the k-th write, because all watchers receive all events in the same order.
type watcher struct {
	*client
	events io.Reader // raw chunks, or the content of DATA frames
	brace  bool      // the last byte read was a brace
	times  []time.Time
}

// watch opens n watches. Their paths may differ.
func (s *server) watch(ctx context.Context, n int, path func(i int) string) (*crowd, error) {
	c := &crowd{server: s, watchers: make([]*watcher, n)}
	const parallel, buffer = 32, 16 << 10
	shared := make([]*client, 0, n)
	for range n * min(s.streams, 1) / max(s.streams, 1) {
		opened, err := s.dial(ctx, 0)
		if err != nil {
			return nil, err
		}
		shared = append(shared, opened)
	}
	err := workload.Parallel(ctx, n, parallel, func(ctx context.Context, i int) error {
		var opened *client
		var err error
		if s.streams > 0 {
			one := *shared[i/s.streams]
			one.buf = make([]byte, buffer)
			opened = &one
		} else if opened, err = s.dial(ctx, buffer); err != nil {
			return err
		}
		c.watchers[i] = &watcher{client: opened, events: opened.from}
		resp, err := opened.send(request{path: path(i), gzip: s.gzip})
		if err != nil {
			return err
		}
		if s.streams > 0 {
			c.watchers[i].events, err = s.plain(resp)
			return err
		}
		if len(resp.TransferEncoding) == 0 {
			return fmt.Errorf("%s: watch %s is not chunked", s.name, path(i))
		}
		return opened.conn.SetDeadline(time.Time{})
	})
	if err != nil {
		c.close()
		return nil, err
	}
	for _, w := range c.watchers {
		c.reading.Go(func() { w.read(c) })
	}
	return c, nil
}

// read reads chunks without decoding them. A line feed after a brace ends an event; any other line
// feed belongs to the chunk encoding.
func (w *watcher) read(c *crowd) {
	for {
		n, err := w.events.Read(w.buf)
		if err != nil {
			c.lost.Add(1)
			return
		}
		now := time.Now()
		lines := bytes.Count(w.buf[:n], []byte("}\n"))
		if w.brace && w.buf[0] == '\n' {
			lines++
		}
		w.brace = w.buf[n-1] == '}'
		for range lines {
			w.times = append(w.times, now)
		}
		if lines > 0 {
			c.got.Add(int64(lines))
		}
	}
}

// wait returns when the crowd has received a number of events in total.
func (c *crowd) wait(ctx context.Context, events int64) error {
	const limit, pause = time.Minute, 5 * time.Millisecond
	for began := time.Now(); c.got.Load() < events; {
		if lost := c.lost.Load(); lost > 0 {
			return fmt.Errorf("%s: %d of %d watches ended", c.server.name, lost, len(c.watchers))
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%s: %d of %d events came within %v", c.server.name, c.got.Load(), events, limit)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *crowd) close() {
	for _, w := range c.watchers {
		if w != nil {
			w.close()
		}
	}
	c.reading.Wait()
}

// delays returns the times from the acknowledgement of each write to its event, in milliseconds.
// The crowd must be closed.
func (c *crowd) delays(acknowledged []time.Time) (all []float64) {
	for _, w := range c.watchers {
		for i, came := range w.times[:min(len(w.times), len(acknowledged))] {
			all = append(all, came.Sub(acknowledged[i]).Seconds()*1000)
		}
	}
	return all
}
