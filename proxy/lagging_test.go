package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

func heapNow() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // and what pools had
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Watches that are not read hold a piece each, whatever has happened, and how large the events are
// makes no difference. That is beside what a connection and a stream take, of either end.
func TestUnreadWatchesHoldLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("make test runs it without the race detector")
	}
	const (
		watches = 100
		stream  = 48 << 10 // goroutines and buffers of a stream; of HTTP/1 a connection, its client's end included
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
				// Each has polled until it was blocked: the kernel takes a few pieces of HTTP/1.
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

// What TLS answers a client that does not read is bounded at all times.
func TestLeftIsBounded(t *testing.T) {
	_, server := tcpPair(t, nil)
	server.begin()
	for !server.socket.unsettled() {
		if _, err := server.Write(make([]byte, exchange.PieceSize)); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for wrote := 0; err == nil; wrote += 100 {
		if wrote > leftMax {
			t.Fatalf("%d bytes are kept", wrote)
		}
		_, err = server.Write(make([]byte, 100))
	}
	if !errors.Is(err, errUnread) {
		t.Error(err)
	}
	server.Close()
}

// The clients of either protocol get each event once and in order, whatever its size, and however
// they pause.
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
				read := &reader{body: bufio.NewReader(resp.Body), from: 2, pause: func() {
					if pauses.IntN(10) == 0 {
						time.Sleep(time.Duration(pauses.IntN(20)) * time.Millisecond)
					}
				}}
				if read.read(func(seen int) bool { return seen == events }); read.err != nil {
					t.Errorf("%s: %v", protocol, read.err)
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

// A watch whose filter is dear gets its events while the pump is held up.
func TestDearFilterIsNotThePumps(t *testing.T) {
	c, _ := cachetest.Roomy(t)
	s, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, testLimits(), nil)
	transport := protocolTransport(t, "http/1.1")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address.String()+watchTarget+"1&labelSelector="+strings.TrimSuffix(strings.Repeat("!k,", 33), ","), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s.pump.mu.Lock() // nobody gets into the queue
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		cachetest.Apply(t, c, cachetest.Sized(t, 2, 10))
	}()
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(resp.Body).ReadString('\n') // empty if there is none
		line <- text
	}()
	select {
	case text := <-line:
		if !strings.Contains(text, `"resourceVersion":"2"`) {
			t.Errorf("it got %q", text)
		}
	case <-time.After(testWait):
		t.Error("it waits for the pump")
	}
	s.pump.mu.Unlock()
	<-applied
}
