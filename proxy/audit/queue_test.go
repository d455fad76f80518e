package audit

import (
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// gatedLog writes one event for each value from the channel next.
type gatedLog struct {
	audit.Backend
	next    chan struct{}
	written int
}

func (g *gatedLog) ProcessEvents(events ...*auditapi.Event) bool {
	<-g.next
	g.written += len(events)
	return true
}

func (*gatedLog) Run(<-chan struct{}) error { return nil }

func (*gatedLog) Shutdown() {}

// Clients control the size of an event. In mode batch, waiting events have a limited number of
// bytes, even if no event can be written. Written events make room.
func TestQueueIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &gatedLog{next: make(chan struct{})}
		q := newQueue(to)
		stop := make(chan struct{})
		if err := q.Run(stop); err != nil {
			t.Fatal(err)
		}
		e := &auditapi.Event{ResponseObject: &runtime.Unknown{Raw: make([]byte, 4<<20)}}
		size := sizeOf(e)
		room := queuedBytes / size
		fill := func() {
			t.Helper()
			for range room + 2 { // the queue has no room for the last two
				q.ProcessEvents(e)
			}
			synctest.Wait()
			if n, bytes := q.events.Load(), q.bytes.Load(); n != room || bytes != room*size {
				t.Errorf("%d events with %d bytes wait, want %d with %d", n, bytes, room, room*size)
			}
		}
		fill()
		const some = 3
		for range some {
			to.next <- struct{}{}
		}
		synctest.Wait()
		if n := q.events.Load(); n != room-some {
			t.Errorf("%d events wait after %d were written", n, some)
		}
		fill()
		close(to.next)
		close(stop)
		q.Shutdown()
		if n, bytes := q.events.Load(), q.bytes.Load(); n != 0 || bytes != 0 || int64(to.written) != room+some {
			t.Errorf("in the end %d events with %d bytes wait, %d were written", n, bytes, to.written)
		}
	})
}
