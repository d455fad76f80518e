package watch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

type alarm struct {
	due    atomic.Bool // there may be such work
	cursor *watchcache.Cursor
	timer  *time.Timer
	unwake [2]func() bool // cancel the wake-ups for a leaving client and a drain
}

// Wake implements grants.Waker. The next step then checks all deadlines.
func (a *alarm) Wake() {
	a.due.Store(true)
	a.cursor.Wake()
}

// start wakes the watch when its client leaves, the server drains, or the deadline has come. The
// first step has such work, too.
func (a *alarm) start(client, draining context.Context, deadline time.Time) {
	a.due.Store(true)
	a.unwake[0] = exchange.AfterFunc(client, a.Wake)
	a.unwake[1] = context.AfterFunc(draining, a.Wake)
	a.timer = time.AfterFunc(time.Until(deadline), a.Wake)
}

func (a *alarm) set(at time.Time) { a.timer.Reset(time.Until(at)) }

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
		a.unwake[0]()
		a.unwake[1]()
	}
}
