package upstream

import (
	"context"
	"sync"
	"time"
)

const (
	// openingMax is how many feeds read their state, or open a watch to follow it, at a
	// time. When an apiserver comes back, all want to.
	openingMax = 8
	// turnMax is how long one of them can hold up another.
	turnMax = 5 * time.Second
)

// turns lets feeds at upstream one after another.
type turns chan struct{}

// wait waits for a turn and returns what ends it. A turn that takes long does not keep others
// from theirs: it may be one resource that upstream is slow with.
func (t turns) wait(ctx context.Context) (end func(), err error) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	over := sync.OnceFunc(func() { <-t })
	late := time.AfterFunc(turnMax, over)
	return func() {
		late.Stop()
		over()
	}, nil
}
