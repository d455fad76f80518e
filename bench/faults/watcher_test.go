package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// selections are the selectors of watchers.
var selections = []string{"", "labelSelector=colour%3Dred", "labelSelector=colour!%3Dred", "fieldSelector=metadata.name%3D" + pinned}

// leavable says that existing objects can start and stop matching a selection. After a relist such
// watches get a 410, because the proxy no longer knows which objects they have seen.
func leavable(selection int) bool { return strings.HasPrefix(selections[selection], "labelSelector") }

// watcher watches, and resumes when its watch ends.
type watcher struct {
	of        resource
	selection int
	histories []conformance.History // a new one after each 410
	expired   atomic.Int64          // number of 410s
	at        atomic.Uint64         // the resourceVersion up to which it has seen all events
	stop      context.CancelFunc
	refused   map[string]int
}

// run watches from a resourceVersion on until it has seen all events up to due, or ctx ends. due is
// set when the last write is known.
func (w *watcher) run(ctx context.Context, s *cluster.Endpoint, namespace string, from uint64, due *atomic.Uint64) error {
	w.refused = map[string]int{}
	defer w.stop()
	state := true
	for ctx.Err() == nil {
		if state {
			w.histories = append(w.histories, conformance.History{Name: fmt.Sprintf("watcher of %q", selections[w.selection])})
		}
		h := &w.histories[len(w.histories)-1]
		if n := len(h.Connections); n > 0 {
			from = h.Connections[n-1].Last()
		}
		conn := conformance.Connection{From: from, State: state}
		done, err := w.connect(ctx, s, namespace, &conn, due)
		if err != nil && !done { // without an answer
			w.refused[err.Error()]++
			pause(ctx)
			continue
		}
		if n := len(conn.Events); n > 0 && conn.Events[n-1].Type == "ERROR" {
			last := conn.Events[n-1]
			conn.Events = conn.Events[:n-1]
			if gjson.GetBytes(last.Line, "object.code").Int() == http.StatusGone {
				w.expired.Add(1)
				w.at.Store(0)
				from, state = conn.Last(), true
				if len(conn.Events) > 0 {
					h.Connections = append(h.Connections, conn)
				}
				continue
			}
			w.refused[string(last.Line)]++
			if state && strings.Contains(string(last.Line), "ResourceVersionTooLarge") {
				from = 0 // like client-go, start again from any state
			}
			pause(ctx)
		}
		if state && !begun(&conn) { // it ended before the initial state was complete
			if len(h.Connections) == 0 {
				w.histories = w.histories[:len(w.histories)-1]
			}
			continue
		}
		h.Connections = append(h.Connections, conn)
		state = false
		if done {
			break
		}
	}
	if until := due.Load(); until > 0 && w.at.Load() >= until {
		return nil
	}
	return fmt.Errorf("watcher of %q stands at %d, due at %d, refused %v", selections[w.selection], from, due.Load(), w.refused)
}

func begun(c *conformance.Connection) bool {
	return slices.ContainsFunc(c.Events, func(e conformance.Event) bool { return e.InitialEnd })
}

func pause(ctx context.Context) { cluster.Pause(ctx, 100*time.Millisecond) }

// connect opens one watch and reads it to its end, or up to due. It fails if the watch could not be
// opened.
func (w *watcher) connect(ctx context.Context, s *cluster.Endpoint, namespace string, conn *conformance.Connection, due *atomic.Uint64) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := "resourceVersion="
	if conn.From > 0 {
		query += strconv.FormatUint(conn.From, 10)
	}
	if conn.State {
		query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	}
	// A watcher checks now and then that it is still connected, like client-go with pings.
	silent := time.AfterFunc(openLimit, cancel)
	defer silent.Stop()
	resp, err := s.Watch(ctx, cluster.Get(w.of.watch(namespace, selections[w.selection], query)))
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	silent.Reset(silence)
	complete := !conn.State
	for e, err := range conformance.Events(resp) {
		switch {
		case errors.Is(err, conformance.ErrNoEvent):
			return false, err
		case err != nil:
			return false, nil //nolint:nilerr // an incomplete line does not count
		}
		silent.Reset(silence)
		conn.Events = append(conn.Events, e)
		complete = complete || e.InitialEnd
		if e.Type == "ERROR" {
			return false, nil
		}
		if complete {
			w.at.Store(e.RV)
		}
		if until := due.Load(); complete && until > 0 && e.RV >= until {
			return true, nil
		}
	}
	return false, nil
}

const (
	openLimit = 15 * time.Second
	silence   = 8 * time.Second
)
