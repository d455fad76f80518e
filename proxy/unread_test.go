package proxy

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
)

// A forwarded watch that its client does not read holds memory in the transport, so it holds room in
// the workspace. If there is none, it ends. Other watches hold no room.
func TestUnreadWatchesHoldRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 4
		o := testOptions()
		o.Workspace, o.Window, o.Stall = 4<<20, 1<<20, time.Minute
		event := make([]byte, 10<<10)
		s, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(event); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}, o)
		reading := clientTo(t, l, "h2").open(t, "/api/v1/pods?watch=1")
		go func() { _, _ = io.Copy(io.Discard, reading.Body) }()
		const unread = room + 2
		for range unread {
			c := dialSlow(t, l, "h2")
			c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			c.pings = true
			if err := ask2(c.frames, 1, "/api/v1/pods?watch=1"); err != nil {
				t.Fatal(err)
			}
			go c.ended()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if held, ended := s.workspace.Taken()/o.Window, testutil.ToFloat64(s.metrics.Limited.WithLabelValues("unread")); held != room || ended != unread-room {
			t.Errorf("%d watches hold room, %v have ended, want %d and %d", held, ended, room, unread-room)
		}
		if n := watchesOf(s)[""]; n != room+1 {
			t.Errorf("%d watches are open upstream, want %d", n, room+1)
		}
		time.Sleep(o.Stall)
		synctest.Wait()
		if held, open := s.workspace.Taken(), watchesOf(s)[""]; held != 0 || open != 1 {
			t.Errorf("after the stall timeout, %d bytes are held and %d watches are open upstream", held, open)
		}
	})
}
