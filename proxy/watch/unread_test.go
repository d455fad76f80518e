package watch

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// gated is a client that reads one write for each value from the channel take.
type gated struct {
	take    chan struct{}
	mu      sync.Mutex
	offered []int // lengths of writes, including the write not yet read
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

// If a client does not read, its watch writes one piece. It polls nothing until the client reads
// this piece. Small events are written together.
func TestUnreadWatchHoldsOnePiece(t *testing.T) {
	seed := cachetest.Seed(t)
	for run := range uint64(cachetest.Rounds(3, 100)) {
		synctest.Test(t, func(t *testing.T) { unreadAtRandom(t, rand.New(rand.NewPCG(seed, run))) })
	}
}

func unreadAtRandom(t *testing.T, random *rand.Rand) {
	c, initial := cachetest.Roomy(t)
	p := paramsOf(t, c, initial)
	p.Lifetime = 10 * time.Hour
	client := &gated{take: make(chan struct{})}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w := New(p)
		w.Run(ctx, &exchange.ChunkWriter{To: client, Unchunked: true})
	}()
	rv, sizes := uint64(1), []int{}
	happen := func(n int) {
		for range n {
			rv++
			sizes = append(sizes, cachetest.AnySize(random, 1<<18))
			cachetest.Apply(t, c, cachetest.Sized(t, rv, sizes[len(sizes)-1]))
		}
		synctest.Wait()
	}
	happen(1 + random.IntN(100))
	for blocked, _ := client.writes(); ; {
		polled := c.Stats().Delivered
		if rv < 150 {
			happen(random.IntN(3))
		}
		switch writes, last := client.writes(); {
		case writes != blocked, c.Stats().Delivered != polled:
			t.Fatalf("%d writes and %d events instead of %d and %d, while nothing is taken", writes, c.Stats().Delivered, blocked, polled)
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
			break // everything was read
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

// Small events that have accumulated are written in one write.
func TestSmallEventsAreWrittenTogether(t *testing.T) {
	c, initial := cachetest.Roomy(t)
	p := paramsOf(t, c, initial)
	for rv := uint64(2); rv < 102; rv++ {
		cachetest.Apply(t, c, cachetest.Sized(t, rv, 100))
	}
	client := &gated{take: make(chan struct{})}
	close(client.take)
	out := &exchange.ChunkWriter{To: client, Unchunked: true}
	on, behind := opened(t, p, out).Step(t.Context(), out, nil)
	if writes, _ := client.writes(); !on || behind || writes != 1 || bytes.Count(client.got.Bytes(), []byte("\n")) != 100 {
		t.Errorf("%d writes, behind %t", writes, behind)
	}
}

// aliasing counts the written bytes that are shared.
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

// A large event is not copied. All watches whose clients do not read it share the same bytes.
func TestLargeEventIsNotCopied(t *testing.T) {
	c, initial := cachetest.Roomy(t)
	p := paramsOf(t, c, initial)
	const large = 1 << 20
	cachetest.Apply(t, c, cachetest.Sized(t, 2, large))
	now := cachetest.Snapshot(t, c)
	client := &aliasing{of: now.Get("a/c-000000").Item()}
	out := &exchange.ChunkWriter{To: client}
	if on, behind := opened(t, p, out).Step(t.Context(), out, nil); !on || behind || client.shared < large || client.own > 200 {
		t.Errorf("%d shared bytes and %d of its own, behind %t", client.shared, client.own, behind)
	}
}

// If the log drops a watch's position while the watch writes its initial state, the watch ends. So
// it keeps no more objects in memory than the log does.
func TestStateEndsWithTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, initial := cachetest.ConfigMaps(t, 10_000)
		p := paramsOf(t, c, initial)
		client := &gated{take: make(chan struct{}, 100)}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.Meter = &fair.Meter{}
			p.Initial = begins(p, initial)
			w := New(p)
			w.Run(t.Context(), &exchange.ChunkWriter{To: client, Unchunked: true})
		}()
		synctest.Wait()
		if writes, last := client.writes(); writes != 1 || last > exchange.PieceSize {
			t.Fatalf("%d writes, the last of %d bytes", writes, last)
		}
		for rv := uint64(20_000); p.Cursor.Err() == nil; rv++ {
			cachetest.Apply(t, c, cachetest.Sized(t, rv, 1))
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
