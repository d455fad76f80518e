package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Event is one event of a watch: the bytes that the server wrote, and values parsed from them.
type Event struct {
	Type string // ADDED, MODIFIED, DELETED, BOOKMARK or ERROR
	Key  string // "namespace/name", or "name" if cluster-scoped; empty for BOOKMARK and ERROR
	RV   uint64 // metadata.resourceVersion; 0 for ERROR
	// InitialEnd marks the bookmark that ends a watch's initial state.
	InitialEnd bool
	Line       []byte // with its newline, or in protobuf the frame with its length
}

// ErrNoEvent is the error for data that is not an event.
var ErrNoEvent = errors.New("not a line of a watch")

// ParseEvent parses a line. It accepts only the exact framing of kube-apiserver.
func ParseEvent(line []byte) (Event, error) {
	e := Event{Line: line}
	rest, ok := bytes.CutPrefix(line, []byte(`{"type":"`))
	kind, rest, ok2 := bytes.Cut(rest, []byte(`","object":`))
	object, ok3 := bytes.CutSuffix(rest, []byte("}\n"))
	if !ok || !ok2 || !ok3 || !gjson.ValidBytes(object) {
		return e, fmt.Errorf("%w: %.200q", ErrNoEvent, line)
	}
	e.Type = string(kind)
	if e.Type == "ERROR" {
		return e, nil
	}
	meta := gjson.GetBytes(object, "metadata")
	if gjson.GetBytes(object, "kind").Str == "Table" {
		meta = gjson.GetBytes(object, "rows.0.object.metadata")
	}
	var err error
	if e.RV, err = strconv.ParseUint(meta.Get("resourceVersion").Str, 10, 64); err != nil {
		return e, fmt.Errorf("%w: resourceVersion: %w", ErrNoEvent, err)
	}
	if e.Type == "BOOKMARK" {
		e.InitialEnd = meta.Get(`annotations.k8s\.io/initial-events-end`).Str == "true"
		return e, nil
	}
	if e.Key = meta.Get("name").Str; meta.Get("namespace").Exists() {
		e.Key = meta.Get("namespace").Str + "/" + e.Key
	}
	return e, nil
}

// added returns the event that shows the same object in a state.
func (e Event) added() Event {
	_, object, _ := bytes.Cut(e.Line, []byte(`,`))
	e.Type, e.Line = "ADDED", append([]byte(`{"type":"ADDED",`), object...)
	return e
}

// String names an event in messages.
func (e Event) String() string { return fmt.Sprintf("%s %s at %d", e.Type, e.Key, e.RV) }

// Connection is one watch request with all events that it delivered.
type Connection struct {
	From   uint64 // the requested resourceVersion, 0 for any
	State  bool   // the watch begins with a state
	Events []Event
}

// History is the history of one watcher. Each further connection starts at the last resourceVersion
// of the previous connection.
type History struct {
	Name        string
	Connections []Connection
}

// Last returns the resourceVersion at which a watcher resumes after a connection. This is the
// resourceVersion of the last event or bookmark. If there was none, it is the connection's start.
func (c *Connection) Last() uint64 {
	for _, e := range slices.Backward(c.Events) {
		if e.Type != "ERROR" {
			return e.RV
		}
	}
	return c.From
}

// Events reads the events of a watch, in JSON or in protobuf according to the response's header. If
// the watch ends within an event, the last element is an error.
func Events(resp *http.Response) iter.Seq2[Event, error] {
	next, body := nextLine, bufio.NewReader(resp.Body)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		next = nextFrame
	}
	return func(yield func(Event, error) bool) {
		for {
			e, err := next(body)
			if err == io.EOF { //nolint:errorlint // a clean end is not wrapped
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
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
