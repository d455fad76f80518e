package h2

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/h2/frame"
)

// A blocked response goes on when half of the window is there again, or 64 KiB of it, or when its rest
// fits. It uses a smaller window after a moment.
func TestSmallWindowsAreGathered(t *testing.T) {
	for _, c := range []struct {
		name         string
		window, give int
		at           []int // bytes that are sent in all, after each gift without a pause
	}{
		{"Go", 4 << 20, 16 << 10, append(slices.Repeat([]int{4 << 20}, 3), 4<<20+frame.LeastMost)},
		{"half at a time", windowInitial, windowInitial/2 + 1, []int{windowInitial + windowInitial/2 + 1, windowInitial + 2*(windowInitial/2+1)}},
		{"less than half", windowInitial, windowInitial/4 + 1, []int{windowInitial, windowInitial + (windowInitial/4+1)*2}},
		{"the rest", 4 << 20, 1000, []int{4<<20 + 1000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				length := c.at[len(c.at)-1] + 1<<20
				if c.name == "the rest" {
					length = c.at[0]
				}
				nc, accepted := conntest.Pipe(unread)
				known := conn.New(accepted)
				known.HoldAs("user", func() (giveBack func(), ok bool) { return func() {}, true })
				served := make(chan struct{})
				go func() {
					defer close(served)
					newServer(saying(pattern(length)), options()).Serve(known)
				}()
				client := newClient(nc, func(http2.Frame) {}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(c.window)})
				defer func() {
					client.close()
					<-served
				}()
				var s *call
				client.do(func() {
					client.widenLocked(nil, windowMax-windowInitial-100)
					s = client.beginLocked(true, 1<<10, 0,
						hpack.HeaderField{Name: ":method", Value: "GET"}, hpack.HeaderField{Name: ":scheme", Value: "https"},
						hpack.HeaderField{Name: ":authority", Value: "a"}, hpack.HeaderField{Name: ":path", Value: "/"})
				})
				before := c.window
				sent := func(after string, want int) {
					t.Helper()
					if c.window >= gatherLeast && after == "at once" {
						synctest.Wait()
						client.do(func() {
							if len(s.body) != before {
								t.Errorf("%s: the proxy reads each frame by itself", after)
							}
						})
						before = want
					}
					if c.window >= gatherLeast {
						time.Sleep(conn.GatherTime + 1)
					}
					synctest.Wait()
					client.do(func() {
						if len(s.body) != want {
							t.Errorf("%s: %d bytes are sent instead of %d", after, len(s.body), want)
						}
					})
				}
				sent("at first", c.window)
				for i, want := range c.at {
					client.do(func() { client.widenLocked(nil, 1) }) // the proxy reads this at once, and gathers what follows
					synctest.Wait()
					client.do(func() { client.widenLocked(s, int64(c.give)) })
					if i == 0 { // nothing has shown yet that the steps are small
						before = want
					}
					sent("at once", want)
				}
				client.do(func() { client.widenLocked(s, 10) })
				sent("before", min(length, c.at[len(c.at)-1]))
				time.Sleep(overdueAfter)
				sent("after a moment", min(length, c.at[len(c.at)-1]+10))
			})
		})
	}
}

// Nothing is gathered for a client whose connection has a small window, or after the response.
func TestGatheringEnds(t *testing.T) {
	for name, wide := range map[string]bool{"small window": false, "end of the response": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const window = 17 * windowInitial // a whole number of the connection's windows, and more than gatherLeast
				const length = window + frame.LeastMost
				nc, accepted := conntest.Pipe(unread)
				known := conn.New(accepted)
				known.HoldAs("user", func() (giveBack func(), ok bool) { return func() {}, true })
				served := make(chan struct{})
				go func() {
					defer close(served)
					newServer(saying(pattern(length)), options()).Serve(known)
				}()
				client := newClient(nc, func(http2.Frame) {}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				defer func() {
					client.close()
					<-served
				}()
				begin := func() (s *call) {
					client.do(func() {
						s = client.beginLocked(true, 1<<10, 0,
							hpack.HeaderField{Name: ":method", Value: "GET"}, hpack.HeaderField{Name: ":scheme", Value: "https"},
							hpack.HeaderField{Name: ":authority", Value: "a"}, hpack.HeaderField{Name: ":path", Value: "/"})
					})
					synctest.Wait()
					return s
				}
				has := func(s *call, want int) {
					t.Helper()
					synctest.Wait()
					client.do(func() {
						if len(s.body) != want {
							t.Errorf("%d bytes are sent instead of %d", len(s.body), want)
						}
					})
				}
				if wide {
					client.do(func() { client.widenLocked(nil, 4*length) })
				}
				s := begin()
				for sent := windowInitial; !wide && sent < window; sent += windowInitial {
					client.do(func() { client.widenLocked(nil, windowInitial) })
					synctest.Wait()
				}
				has(s, window)
				client.do(func() { client.widenLocked(s, 10) }) // a small step
				has(s, window)
				if wide {
					client.do(func() { client.widenLocked(s, length) })
					has(s, window) // it is gathered
					time.Sleep(conn.GatherTime)
					has(s, length)
					time.Sleep(conn.GatherTime) // the read that had begun
					has(begin(), window)        // at once
					return
				}
				client.do(func() {
					client.widenLocked(s, length)
					client.widenLocked(nil, windowInitial+1)
				})
				has(s, length)
			})
		})
	}
}
