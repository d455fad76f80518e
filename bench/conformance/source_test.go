package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// source is the source of the proxy's response, according to the proxy's access log.
type source string

const (
	cache    source = "cache"
	upstream source = "upstream"
	// anywhere is for responses whose source depends on concurrent requests.
	anywhere source = "anywhere"
	// ifCached means the cache, except for collections that the apiserver itself does not cache:
	// for these it means upstream.
	ifCached source = "cache if the apiserver caches it"
)

// source resolves ifCached for a collection.
func (c *collection) source(of source) source {
	switch {
	case c.excluded:
		return upstream
	case of != ifCached:
		return of
	case c.uncached:
		return upstream
	}
	return cache
}

// accessLog has a line for each of the proxy's responses. The proxy writes the line when the
// response has ended.
type accessLog struct {
	path string
	mu   struct {
		sync.Mutex
		at    int64 // up to here the log is in lines
		lines map[string][]byte
	}
}

// line waits for the line about a response with the given header.
func (l *accessLog) line(ctx context.Context, header http.Header) ([]byte, error) {
	id := header.Get("Audit-Id")
	if id == "" {
		return nil, errors.New("the answer has no Audit-Id")
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.Limit)
	defer cancel()
	for ; ctx.Err() == nil; cluster.Pause(ctx, time.Millisecond) {
		line, err := l.known(id)
		if line != nil || err != nil {
			return line, err
		}
	}
	return nil, fmt.Errorf("%s has no line about the response with the Audit-Id %q: %w", l.path, id, ctx.Err())
}

// known returns the line with an Audit-Id, or nil. It reads the log if the line is not yet known.
func (l *accessLog) known(id string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.mu.lines[id]; line != nil {
		return line, nil
	}
	text, end, err := cluster.LinesFrom(l.path, l.mu.at)
	for line := range bytes.Lines(text) {
		if own := gjson.GetBytes(line, "auditID").Str; own != "" {
			l.mu.lines[own] = line
		}
	}
	l.mu.at = end
	return l.mu.lines[id], err
}

// of returns the source of a response with the given header.
func (l *accessLog) of(ctx context.Context, header http.Header) (source, error) {
	line, err := l.line(ctx, header)
	return source(gjson.GetBytes(line, "source").Str), err
}

// unproved reports whether a response with the given header was forwarded because its cache could not
// be proved up to date at once. On a busy machine, the probe may fail.
func (l *accessLog) unproved(ctx context.Context, header http.Header) bool {
	line, err := l.line(ctx, header)
	because := gjson.GetBytes(line, "forwardedBecause").Str
	return err == nil && (because == "not-up-to-date" || because == "upstream-lost")
}

// matches reports whether a response may have come from a source.
func (s source) matches(from source) bool {
	return from == s || s == anywhere || s == cache && inParts && from == upstream
}

// check returns an error if a response with the given header came from elsewhere.
func (s source) check(ctx context.Context, l *accessLog, header http.Header) error {
	if s == anywhere {
		return nil
	}
	line, err := l.line(ctx, header)
	if err != nil {
		return err
	}
	if from := source(gjson.GetBytes(line, "source").Str); !s.matches(from) {
		return fmt.Errorf("the answer came from %q instead of %q\n%s", from, s, line)
	}
	return nil
}
