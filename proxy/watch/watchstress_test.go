package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// sluggish is a client that sometimes pauses.
type sluggish struct {
	random *rand.Rand
	mu     struct {
		sync.Mutex
		got bytes.Buffer
	}
	slept time.Duration // valid after the last write
}

func (s *sluggish) got() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.mu.got.Bytes())
}

// The maximum durations of a write and of a review.
const longest, longestReview = 90 * time.Second, 20 * time.Second

// Write implements io.Writer.
func (s *sluggish) Write(p []byte) (int, error) {
	if s.random.IntN(3) == 0 {
		pause := time.Duration(s.random.Int64N(int64(longest)))
		time.Sleep(pause)
		s.slept += pause
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.got.Write(p)
}

// A watch delivers each event once and in order, and is reviewed when due. It ends when its time is
// up, its client leaves or the server drains. All this is true whatever happens at the same time,
// however slow the client is, and whether the watch is compressed or not.
func TestWatchesAtRandom(t *testing.T) {
	seed := cachetest.Seed(t)
	for run := range uint64(cachetest.Rounds(5, 100)) {
		synctest.Test(t, func(t *testing.T) { watchAtRandom(t, rand.New(rand.NewPCG(seed, run))) })
	}
}

func watchAtRandom(t *testing.T, random *rand.Rand) {
	c, initial := cachetest.Roomy(t)
	p := paramsOf(t, c, initial)
	p.Bookmarks, p.Lifetime = random.IntN(2) == 0, time.Duration(300+random.IntN(3000))*time.Second
	cachetest.SetBookmark(t, c)
	draining, drain := context.WithCancel(context.Background())
	defer drain()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	const share = time.Minute
	p.Draining, p.DrainShare = draining, share
	reviews := 0
	if random.IntN(2) == 0 {
		p.Recheck, p.Owner = time.Minute, &owner{review: func(ctx context.Context) error {
			reviews++
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(reviews) * 7919 * time.Millisecond % longestReview):
			}
			if reviews%3 == 1 {
				return errors.New("no answer")
			}
			return nil
		}}
	}
	got := func(read []byte) ([]byte, error) { return read, nil }
	if random.IntN(2) == 0 {
		p.Events, p.Compressed, got = new(Events), true, decompressed
	}
	w := New(p)
	client := &sluggish{random: rand.New(rand.NewPCG(random.Uint64(), 0))}
	began := time.Now()
	ended, took := make(chan struct{}), time.Duration(0)
	go func() {
		defer close(ended)
		w.Run(ctx, &exchange.ChunkWriter{To: client, Unchunked: true})
		took = time.Since(began)
	}()
	events := 0
	for quiet := began.Add(time.Duration(random.IntN(250)) * time.Second); time.Now().Before(quiet); {
		objects := make([]*object.Object, 1+random.IntN(100))
		for i := range objects {
			events++
			size := random.IntN(200)
			if random.IntN(200) == 0 {
				size = cachetest.AnySize(random, 1<<18)
			}
			objects[i] = cachetest.Sized(t, uint64(events+1), size)
		}
		cachetest.Apply(t, c, objects...)
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Millisecond)
	}
	const atRest, backlog = 10 * time.Minute, 6 // the times to rest until all waiting events are read
	came := func() int {
		read, _ := got(client.got())
		return bytes.Count(read, []byte(`"object"`)) - bytes.Count(read, []byte("BOOKMARK"))
	}
	time.Sleep(atRest)
	for rests := 0; rests < backlog && came() < events && !isClosed(ended); rests++ {
		time.Sleep(atRest)
	}
	// Otherwise it ended in time, as checked below, or its reviews failed for too long.
	if !isClosed(ended) {
		if got := came(); got != events {
			t.Errorf("%d of %d events came", got, events)
		}
		at, most := time.Now(), 2*longest+longestReview // a running write or review, and a bookmark
		if p.Compressed {
			most += longest // the end of the gzip member
		}
		switch random.IntN(3) {
		case 0:
			most += began.Add(p.Lifetime).Sub(at)
		case 1:
			// When the share ends, a regular bookmark may be due. It is written before the final one.
			most += share + longest
			drain()
		case 2:
			leave()
		}
		<-ended
		if took := time.Since(at); took > most {
			t.Errorf("it ended %v late", took-most)
		}
	}
	rv := uint64(1)
	read, err := got(client.got())
	if err != nil {
		t.Fatalf("the watch ends with %v", err)
	}
	for line := range bytes.Lines(read) {
		if bytes.Contains(line, []byte("BOOKMARK")) {
			continue
		}
		rv++
		if want := fmt.Sprintf(`"resourceVersion":"%d"`, rv); !bytes.Contains(line, []byte(want)) {
			t.Fatalf("%s instead of %s", line, want)
		}
	}
	// A large event takes many writes, without reviews in between.
	if w.recheck.every > 0 && reviews < int((took-client.slept)/(5*time.Minute)) {
		t.Errorf("%d reviews in %v, %v of which the client slept", reviews, took, client.slept)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
