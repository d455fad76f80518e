package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// applySized applies a change of the one object of pageOf's cache, with so many bytes of padding.
func applySized(t *testing.T, r *read, rv uint64, size int) {
	t.Helper()
	o, err := r.resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"c-000000","namespace":"a","uid":"u","resourceVersion":"%d"},"data":{"p":%q}}`,
		rv, strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cache.Apply([]watchcache.Change{{Object: o}}, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// anySize is a random size from 1 byte to most, each order of magnitude as likely.
func anySize(random *rand.Rand, most int) int {
	return int(math.Exp(random.Float64() * math.Log(float64(most))))
}

// roomy is a cache like r's whose log forgets nothing.
func roomy(t *testing.T, r *read) watchcache.Snapshot {
	t.Helper()
	r.cache = watchcache.New(*r.resource, watchcache.Limits{Age: time.Hour, Events: 1 << 20, Bytes: 1 << 30})
	r.cache.Reset(nil, 1)
	snapshot, err := r.cache.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// gated is a client that takes what it is sent when it is told to.
type gated struct {
	take    chan struct{}
	mu      sync.Mutex
	offered []int // the lengths of what was written, that which is not taken yet included
	got     bytes.Buffer
}

// Write implements io.Writer.
func (g *gated) Write(p []byte) (int, error) {
	g.mu.Lock()
	g.offered = append(g.offered, len(p))
	g.mu.Unlock()
	<-g.take
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

func (g *gated) writes() (n, last int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n = len(g.offered); n > 0 {
		last = g.offered[n-1]
	}
	return n, last
}

// A watch whose client does not read has one piece written, and looks at nothing before that
// was taken, whatever happens meanwhile. Small events are written together.
func TestUnreadWatchHoldsOnePiece(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for run := range uint64(30) {
		synctest.Test(t, func(t *testing.T) { unreadAtRandom(t, rand.New(rand.NewPCG(seed, run))) })
	}
}

func unreadAtRandom(t *testing.T, random *rand.Rand) {
	r, _ := pageOf(t, 1, 0)
	initial := roomy(t, r)
	r.watchSeconds = 36000
	cursor, err := r.cache.WatchAfter(r.filter, initial)
	if err != nil {
		t.Fatal(err)
	}
	client := &gated{take: make(chan struct{})}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w := &watching{read: r, cursor: cursor, draining: context.Background(), done: func() {}}
		w.Run(ctx, &exchange.ChunkWriter{To: client, Unframed: true})
	}()
	rv, sizes := uint64(1), []int{}
	happen := func(n int) {
		for range n {
			rv++
			sizes = append(sizes, anySize(random, 1<<20))
			applySized(t, r, rv, sizes[len(sizes)-1])
		}
		synctest.Wait()
	}
	happen(1 + random.IntN(100))
	for blocked, _ := client.writes(); ; {
		polled := r.cache.Stats().Delivered
		if rv < 150 {
			happen(random.IntN(3))
		}
		switch writes, last := client.writes(); {
		case writes != blocked, r.cache.Stats().Delivered != polled:
			t.Fatalf("%d writes and %d events instead of %d and %d, while nothing is taken", writes, r.cache.Stats().Delivered, blocked, polled)
		case last > exchange.PieceSize:
			t.Fatalf("a write of %d bytes", last)
		}
		held := -client.got.Len()
		for _, size := range sizes[:polled] {
			held += size
		}
		if held > max(exchange.PieceSize, sizes[polled-1]) {
			t.Fatalf("it holds %d bytes", held)
		}
		client.take <- struct{}{}
		synctest.Wait()
		now, _ := client.writes()
		if now == blocked {
			break // that was all
		}
		blocked = now
	}
	leave()
	<-ended
	want := uint64(2)
	for line := range bytes.Lines(client.got.Bytes()) {
		if !bytes.Contains(line, fmt.Appendf(nil, `"resourceVersion":"%d"`, want)) {
			t.Fatalf("%.200s instead of %d", line, want)
		}
		want++
	}
	if want != rv+1 {
		t.Errorf("%d events of %d", want-2, rv-1)
	}
}

// Small events that have piled up are one write.
func TestSmallEventsAreWrittenTogether(t *testing.T) {
	r, _ := pageOf(t, 1, 0)
	initial := roomy(t, r)
	cursor, err := r.cache.WatchAfter(r.filter, initial)
	if err != nil {
		t.Fatal(err)
	}
	for rv := uint64(2); rv < 102; rv++ {
		applySized(t, r, rv, 100)
	}
	var client countingWriter
	out := &exchange.ChunkWriter{To: &client, Unframed: true}
	w := &watching{read: r, cursor: cursor, draining: context.Background(), done: func() {}}
	if !w.open(t.Context(), out) {
		t.Fatal("it does not begin")
	}
	defer w.close()
	if on, behind := w.turn(t.Context(), out, nil); !on || behind || client.writes != 1 || bytes.Count(client.Bytes(), []byte("\n")) != 100 {
		t.Errorf("%d writes, behind %t", client.writes, behind)
	}
}

// aliasing counts what is written from somebody else's bytes.
type aliasing struct {
	of     []byte
	shared int
	own    int
}

// Write implements io.Writer.
func (a *aliasing) Write(p []byte) (int, error) {
	at, begin := uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(unsafe.Pointer(unsafe.SliceData(a.of)))
	if begin <= at && at < begin+uintptr(len(a.of)) {
		a.shared += len(p)
	} else {
		a.own += len(p)
	}
	return len(p), nil
}

// However many watches do not read a large event, there is one of it.
func TestLargeEventIsNotCopied(t *testing.T) {
	r, _ := pageOf(t, 1, 0)
	initial := roomy(t, r)
	cursor, err := r.cache.WatchAfter(r.filter, initial)
	if err != nil {
		t.Fatal(err)
	}
	const large = 1 << 20
	applySized(t, r, 2, large)
	now, err := r.cache.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	client := &aliasing{of: now.Get("a/c-000000").Item()}
	out := &exchange.ChunkWriter{To: client}
	w := &watching{read: r, cursor: cursor, draining: context.Background(), done: func() {}}
	if !w.open(t.Context(), out) {
		t.Fatal("it does not begin")
	}
	defer w.close()
	if on, behind := w.turn(t.Context(), out, nil); !on || behind || client.shared < large || client.own > 200 {
		t.Errorf("%d shared bytes and %d of its own, behind %t", client.shared, client.own, behind)
	}
}

// A watch that is still writing the state it begins with ends when the log has left it behind:
// it keeps no more alive than the log does.
func TestStateEndsWithTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, initial := pageOf(t, 10_000, 0)
		cursor, err := r.cache.WatchAfter(r.filter, initial)
		if err != nil {
			t.Fatal(err)
		}
		client := &gated{take: make(chan struct{}, 100)}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w := &watching{read: r, cursor: cursor, initial: initial, state: true, draining: context.Background(), done: func() {}}
			w.Run(t.Context(), &exchange.ChunkWriter{To: client, Unframed: true})
		}()
		synctest.Wait()
		if writes, last := client.writes(); writes != 1 || last > exchange.PieceSize {
			t.Fatalf("%d writes, the last of %d bytes", writes, last)
		}
		for rv := uint64(20_000); cursor.Err() == nil; rv++ {
			applySized(t, r, rv, 1)
		}
		for range cap(client.take) {
			client.take <- struct{}{}
		}
		<-ended
		if writes, _ := client.writes(); writes > 2 {
			t.Errorf("it has written %d pieces", writes)
		}
	})
}

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
		r, _ := pageOf(t, 1, 0)
		roomy(t, r)
		for i := range events.n {
			applySized(t, r, uint64(i+2), events.size)
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
				_, address := serveFeeds(t, oneFeed{feed: &rawFeed{r.cache}}, http.NotFound, testLimits(), nil)
				delivered := r.cache.Stats().Delivered
				before := heapNow()
				open(address)
				// Each has polled until it was blocked: the kernel takes a few pieces of HTTP/1.
				waitFor(t, "all watches have begun", func() bool { return r.cache.Stats().Delivered-delivered >= watches })
				var held int64
				for still, was := 0, uint64(0); still < 5; still++ {
					if held = heapNow() - before; held > watches*(exchange.ChunkKeep+stream) {
						t.Fatalf("%d watches hold %d KiB each", watches, held/watches>>10)
					}
					if now := r.cache.Stats().Delivered; now != was {
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
	r, _ := pageOf(t, 1, 0)
	roomy(t, r)
	const crowd, events = 6, 150
	_, address := serveFeeds(t, oneFeed{feed: &rawFeed{r.cache}}, http.NotFound, testLimits(), nil)
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
		applySized(t, r, uint64(i+2), anySize(random, 1<<20))
		if random.IntN(5) == 0 {
			time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
		}
	}
	clients.Wait()
}

type countingWriter struct {
	bytes.Buffer
	writes int
}

// Write implements io.Writer.
func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	return w.Buffer.Write(p)
}
