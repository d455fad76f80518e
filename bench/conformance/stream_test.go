package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// streamLimit is how long a test waits for what has to come on a watch.
const streamLimit = 30 * time.Second

// stream is an open watch.
type stream struct {
	name   string // of the server
	header http.Header
	lines  <-chan Event // closed at the end
	err    error        // why it ended, nil for a clean end; read it after lines is closed
	cancel context.CancelFunc
	done   chan struct{}
}

// watch opens a watch. It must be closed.
func (e *endpoint) watch(ctx context.Context, r request) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	bound := time.AfterFunc(streamLimit, cancel)
	resp, err := e.open(ctx, r)
	bound.Stop()
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		return nil, fmt.Errorf("%s: watch %s: %d %.500s", e.name, r.target, resp.StatusCode, body)
	}
	lines := make(chan Event, 64)
	s := &stream{name: e.name, header: resp.Header, lines: lines, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer close(lines)
		defer resp.Body.Close()
		s.err = read(ctx, resp.Body, lines)
	}()
	return s, nil
}

// read passes on the lines of a watch until it ends or ctx does, which is no error.
func read(ctx context.Context, body io.Reader, lines chan<- Event) error {
	r := bufio.NewReader(body)
	for {
		line, err := r.ReadBytes('\n')
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case err != nil:
			return fmt.Errorf("watch broke after %q: %w", line, err)
		}
		event, err := ParseEvent(line)
		if err != nil {
			return err
		}
		select {
		case lines <- event:
		case <-ctx.Done():
			return nil
		}
	}
}

// close ends the watch and waits for its reader.
func (s *stream) close() {
	s.cancel()
	<-s.done
}

// until collects events up to the first that is the last, or to the end of the watch.
func (s *stream) until(last func(Event) bool) ([]Event, error) {
	limit := time.NewTimer(streamLimit)
	defer limit.Stop()
	var events []Event
	for {
		select {
		case e, open := <-s.lines:
			if !open {
				return events, s.err
			}
			if events = append(events, e); last(e) {
				return events, nil
			}
		case <-limit.C:
			return events, fmt.Errorf("the watch did not come to its end within %v", streamLimit)
		}
	}
}
