package conformance

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// stream is an open watch.
type stream struct {
	name   string // the server's name
	header http.Header
	lines  <-chan Event // closed at the end
	err    error        // how the watch ended, nil for a clean end; valid after lines is closed
	cancel context.CancelFunc
	done   chan struct{}
}

// openStream opens a watch. The caller must close it.
func openStream(ctx context.Context, e *cluster.Endpoint, r request) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	resp, err := e.Watch(ctx, settled(r))
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.Header.Get("Content-Encoding") == "gzip" {
		resp.Body = &unzipped{ReadCloser: resp.Body}
	}
	const ahead = 1024 // the apiserver disconnects slow clients, so streams are read ahead of the test
	lines := make(chan Event, ahead)
	s := &stream{name: e.Name, header: resp.Header, lines: lines, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer close(lines)
		defer resp.Body.Close()
		s.err = pass(ctx, resp, lines)
	}()
	return s, nil
}

// unzipped decompresses a watch. It begins with the first read, because the first bytes may follow the
// header later.
type unzipped struct {
	io.ReadCloser
	from *gzip.Reader
}

// Read implements io.Reader.
func (u *unzipped) Read(p []byte) (n int, err error) {
	if u.from == nil {
		if u.from, err = gzip.NewReader(u.ReadCloser); err != nil {
			return 0, err
		}
	}
	return u.from.Read(p)
}

// pass passes on the events of a watch until the watch or ctx ends. The end of ctx is not an error.
func pass(ctx context.Context, resp *http.Response, to chan<- Event) error {
	for event, err := range Events(resp) {
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case to <- event:
		case <-ctx.Done():
		}
	}
	return nil
}

// close ends the watch and waits for its reader.
func (s *stream) close() {
	s.cancel()
	<-s.done
}

// until collects events up to the first one for which last returns true, or to the end of the
// watch.
func (s *stream) until(last func(Event) bool) ([]Event, error) {
	limit := time.NewTimer(cluster.Limit)
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
			return events, fmt.Errorf("%s: the awaited event did not come within %v", s.name, cluster.Limit)
		}
	}
}
