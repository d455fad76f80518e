package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
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
		next := nextLine
		if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
			next = nextFrame
		}
		s.err = read(ctx, bufio.NewReader(resp.Body), next, lines)
	}()
	return s, nil
}

// nextLine reads an event in JSON.
func nextLine(r *bufio.Reader) (Event, error) {
	line, err := r.ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return Event{}, err
	case err != nil:
		return Event{}, fmt.Errorf("watch broke after %q: %w", line, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return ParseEvent(line)
}

// nextFrame reads an event in protobuf.
func nextFrame(r *bufio.Reader) (Event, error) {
	frame, err := readFrame(r)
	if err != nil {
		return Event{}, err
	}
	return ParseProtoEvent(frame)
}

// read passes on the events of a watch until it ends or ctx does, which is no error.
func read(ctx context.Context, body *bufio.Reader, next func(*bufio.Reader) (Event, error), lines chan<- Event) error {
	for {
		event, err := next(body)
		switch {
		case ctx.Err() != nil, err == io.EOF: //nolint:errorlint // a clean end is not wrapped
			return nil
		case err != nil:
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
	return s.untilWithin(streamLimit, last)
}

// untilWithin is until for a watch that takes longer.
func (s *stream) untilWithin(bound time.Duration, last func(Event) bool) ([]Event, error) {
	limit := time.NewTimer(bound)
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
			return events, fmt.Errorf("the watch did not come to its end within %v", bound)
		}
	}
}
