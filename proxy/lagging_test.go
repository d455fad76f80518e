package proxy

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

func heapNow() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools too
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Unread watches hold one piece each, whatever the number and size of the events. The connection
// and the stream use additional memory at both ends.
func TestUnreadWatchesHoldLittle(t *testing.T) {
	if cachetest.Race {
		t.Skip("make test runs it without the race detector")
	}
	const (
		watches = 100
		stream  = 48 << 10 // for a stream; over HTTP/1 for a connection and its client
	)
	for _, events := range []struct{ n, size int }{{128, 30 << 10}, {40, 1 << 20}} {
		c, _ := cachetest.Roomy(t)
		for i := range events.n {
			cachetest.Apply(t, c, cachetest.Sized(t, uint64(i+2), events.size))
		}
		for protocol, open := range map[string]func(address net.Addr){
			"HTTP/2": func(address net.Addr) { unreadHTTP2(t, address, watches, watchTarget+"1") },
			"HTTP/1": func(address net.Addr) {
				for range watches {
					unreadHTTP1(t, address, watchTarget+"1")
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, %d KiB", protocol, events.size>>10), func(t *testing.T) {
				_, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, testLimits(), nil)
				delivered := c.Stats().Delivered
				before := heapNow()
				open(address)
				// Each watch has polled until it was blocked. Over HTTP/1, the kernel keeps a few
				// pieces.
				waitFor(t, "all watches have begun", func() bool { return c.Stats().Delivered-delivered >= watches })
				var held int64
				for still, was := 0, uint64(0); still < 5; still++ {
					if held = heapNow() - before; held > watches*(exchange.ChunkKeep+stream) {
						t.Fatalf("%d watches hold %d KiB each", watches, held/watches>>10)
					}
					if now := c.Stats().Delivered; now != was {
						was, still = now, 0
					}
				}
				t.Logf("%d KiB each", held/watches>>10)
			})
		}
	}
}

// Over both protocols, clients receive each event once and in order, whatever the sizes of events
// and the clients' pauses.
func TestWatchesOfAllSizes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c, _ := cachetest.Roomy(t)
	const crowd, events = 6, 150
	_, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, testLimits(), nil)
	var clients sync.WaitGroup
	for _, protocol := range []string{"h2", "http/1.1"} {
		transport := protocolTransport(t, protocol)
		for range crowd {
			pauses := rand.New(rand.NewPCG(random.Uint64(), 0))
			clients.Go(func() {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address.String()+watchTarget+"1", nil)
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				read := &cachetest.Reader{Body: bufio.NewReader(resp.Body), From: 2, Pause: func() {
					if pauses.IntN(10) == 0 {
						time.Sleep(time.Duration(pauses.IntN(20)) * time.Millisecond)
					}
				}}
				if read.Read(func(seen int) bool { return seen == events }); read.Err != nil {
					t.Errorf("%s: %v", protocol, read.Err)
				}
			})
		}
	}
	for i := range events {
		cachetest.Apply(t, c, cachetest.Sized(t, uint64(i+2), cachetest.AnySize(random, 1<<20)))
		if random.IntN(5) == 0 {
			time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
		}
	}
	clients.Wait()
}
