package clients

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// Watch is an open watch on a connection of its own. It records its events.
type Watch struct {
	Name    string
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		events []conformance.Event
		err    error // how the stream ended; io.EOF for a clean end
	}
}

// WatchAt opens a watch that ends with the test.
func WatchAt(tb testing.TB, at *cluster.Endpoint, target string) *Watch {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	w := &Watch{Name: target, cancel: cancel}
	e := cluster.NewEndpoint(at.Name, at.URL, at.Token, at.TLS)
	resp, err := e.Watch(ctx, cluster.Get(target))
	cluster.MustT(tb, err)
	w.running.Go(func() {
		defer e.CloseIdle()
		defer resp.Body.Close() //nolint:errcheck // what was read is what counts
		err := io.EOF
		for event, broken := range conformance.Events(resp) {
			if err = broken; err != nil {
				break
			}
			w.mu.Lock()
			w.mu.events = append(w.mu.events, event)
			w.mu.Unlock()
			err = io.EOF
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.mu.err = err
	})
	tb.Cleanup(w.Leave)
	return w
}

// Leave closes the watch.
func (w *Watch) Leave() {
	w.cancel()
	w.running.Wait()
}

// Events returns the events so far.
func (w *Watch) Events() []conformance.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clip(w.mu.events)
}

// Last returns the last event so far, or the zero Event if there is none.
func (w *Watch) Last() (e conformance.Event) {
	if events := w.Events(); len(events) > 0 {
		e = events[len(events)-1]
	}
	return e
}

// Saw reports whether there has been an event of this type for an object.
func (w *Watch) Saw(kind, key string) bool {
	return slices.ContainsFunc(w.Events(), func(e conformance.Event) bool { return e.Type == kind && e.Key == key })
}

// Ended returns the error with which the stream ended, or nil if it is still open.
func (w *Watch) Ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.err
}
