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

// Event is one event of a watch: the bytes that the server wrote and what was read out of them.
type Event struct {
	Type string // ADDED, MODIFIED, DELETED, BOOKMARK or ERROR
	Key  string // "namespace/name", or "name" in no namespace; empty for BOOKMARK and ERROR
	RV   uint64 // metadata.resourceVersion; 0 for ERROR
	// InitialEnd marks the bookmark that ends the state which a watch began with.
	InitialEnd bool
	Line       []byte // the whole line with its newline, or in protobuf the frame with its length
}

// ErrNoEvent is the error for data that is no event.
var ErrNoEvent = errors.New("not a line of a watch")

// ParseEvent reads a line. It insists on the framing that kube-apiserver writes, down to the bytes.
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

// as is the same object in a line of another type.
func (e Event) as(kind string) Event {
	head := `{"type":"` + e.Type + `",`
	e.Line = append([]byte(`{"type":"`+kind+`",`), e.Line[len(head):]...)
	e.Type = kind
	return e
}

// String names an event in messages.
func (e Event) String() string { return fmt.Sprintf("%s %s at %d", e.Type, e.Key, e.RV) }

// Connection is one watch request and all that came of it.
type Connection struct {
	From   uint64 // the resourceVersion that was asked for, 0 for any
	State  bool   // the watch begins with a state
	Events []Event
}

// History is what one watcher has seen. Each further connection begins at the last resourceVersion
// of the one before.
type History struct {
	Name        string
	Connections []Connection
}

// Last is where a watcher goes on from after a connection: at its last event or bookmark, else
// where it began.
func (c *Connection) Last() uint64 {
	for _, e := range slices.Backward(c.Events) {
		if e.Type != "ERROR" {
			return e.RV
		}
	}
	return c.From
}

// Events reads the events of a watch, in JSON or in protobuf as its header says. The last comes
// with an error unless the watch ends after a whole event.
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
