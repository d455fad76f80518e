package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// trail follows a selection directly at the apiserver.
type trail struct {
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		ref conformance.Reference
		at  uint64 // resourceVersion of the last event; 0 until the initial state is complete
		err error
	}
}

func startTrail(ctx context.Context, s *cluster.Endpoint, of resource, namespace string, selection int) (*trail, error) {
	open := func(query string) (*http.Response, error) {
		return s.Watch(ctx, cluster.Get(of.watch(namespace, selections[selection], query)))
	}
	resp, err := open("resourceVersion=&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	if err != nil {
		return nil, err
	}
	o := &trail{}
	o.running.Go(func() {
		for err == nil {
			at, failed := o.follow(resp)
			if at == 0 || ctx.Err() != nil {
				o.fail(failed)
				return
			}
			// The apiserver ends slow watches. This one may be slow because many processes share a
			// processor.
			resp, err = open(fmt.Sprintf("resourceVersion=%d", at))
		}
		o.fail(err)
	})
	return o, nil
}

// follow reads events to the end of a watch. It returns the resourceVersion to resume from, if
// there is one.
func (o *trail) follow(resp *http.Response) (at uint64, err error) {
	defer resp.Body.Close()
	for e, broken := range conformance.Events(resp) {
		if errors.Is(broken, conformance.ErrNoEvent) {
			return 0, broken
		}
		if err = broken; err != nil {
			break
		}
		if e.Type == "ERROR" {
			return 0, fmt.Errorf("%s", e.Line)
		}
		o.note(e)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.at, err
}

func (o *trail) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.err = err
}

// startTrails follows each selection, until the test ends.
func startTrails(ctx context.Context, t *testing.T, w *world, namespace string) (trails []*trail) {
	t.Helper()
	direct := w.direct(t)
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(func() {
		cancel()
		for _, o := range trails {
			o.running.Wait()
		}
	})
	for i := range selections {
		o, err := startTrail(ctx, direct, w.of, namespace, i)
		if err != nil {
			t.Fatal(err)
		}
		trails = append(trails, o)
	}
	return trails
}

func (o *trail) note(e conformance.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ref := &o.mu.ref
	switch {
	case e.InitialEnd:
		ref.Since, o.mu.at = e.RV, e.RV
	case e.Type == "BOOKMARK":
	case o.mu.at == 0:
		ref.State = append(ref.State, e)
	default:
		ref.Events = append(ref.Events, e)
		o.mu.at = e.RV
	}
}

// upTo waits until the trail has reached a resourceVersion, and returns the events so far.
func (o *trail) upTo(ctx context.Context, rv uint64) (*conformance.Reference, error) {
	for {
		o.mu.Lock()
		at, err, ref := o.mu.at, o.mu.err, o.mu.ref
		o.mu.Unlock()
		switch {
		case at > 0 && at >= rv:
			return &ref, nil
		case err != nil:
			return nil, fmt.Errorf("the apiserver's own watch: %w", err)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		pause(ctx)
	}
}
