package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Many watches receive every event once and in order, however slow some clients are. The watches end
// for different reasons: the client leaves, the time is up, or the server drains.
func TestWatches(t *testing.T) {
	seed := cachetest.Seed(t)
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": tlsConfig(t)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { watchAtRandom(t, config, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func watchAtRandom(t *testing.T, config *tls.Config, random *rand.Rand) {
	const (
		crowd  = 60
		events = 600
		first  = 10
	)
	c, _ := cachetest.Roomy(t)
	var open atomic.Int64
	shares := make([]time.Duration, crowd)
	for i := range shares {
		shares[i] = time.Duration(random.IntN(300)) * time.Millisecond
	}
	draining, drain := context.WithCancel(context.Background())
	defer drain()
	l := conntest.Listen(unbuffered)
	_, end := newServer(func(req *exchange.Request) *exchange.Response {
		params := watchOf(t, c)
		if params.Lifetime = time.Hour; req.Path == "/short" {
			params.Lifetime = time.Second
		}
		params.Draining, params.DrainShare = draining, shares[open.Add(1)-1]
		params.Done = func() { open.Add(-1) }
		resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		resp.Stream = watch.New(params)
		return resp
	}, config, time.Minute).runs(t, l)
	defer end()
	var all, drained sync.WaitGroup
	readers := make([]*cachetest.Reader, crowd)
	for i := range crowd {
		client, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		if config != nil {
			client = overTLS(client, "http/1.1", nil)
		}
		path := "/long"
		if i%4 == 1 {
			path = "/short"
		}
		if _, err := io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until the watch is open
		pauses := rand.New(rand.NewPCG(random.Uint64(), 0))
		slow := time.Duration(random.IntN(2)) * 4 * time.Millisecond
		read := &cachetest.Reader{From: first, Pause: func() {
			if slow > 0 && pauses.IntN(4) == 0 {
				time.Sleep(time.Duration(pauses.Int64N(int64(slow))))
			}
		}}
		readers[i] = read
		// The other clients read until their time is up or the server drains.
		gone := events + 1
		switch i % 4 {
		case 2:
			gone = random.IntN(events)
		case 0, 3:
			drained.Add(1) // a drain ends watches that are behind
		}
		all.Go(func() {
			defer client.Close()
			resp, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				read.Err = err
				return
			}
			read.Body = bufio.NewReader(resp.Body)
			read.Read(func(seen int) bool { return seen == gone || i%4 != 1 && seen == events })
			if i%4 == 0 || i%4 == 3 {
				drained.Done()
			}
			if i%4 == 1 || i%4 == 3 && read.Err == nil {
				_, read.Err = read.Body.ReadByte() // must be the end of the body
			}
		})
	}
	for n := 0; n < events; {
		objects := make([]*object.Object, min(1+random.IntN(40), events-n))
		for i := range objects {
			size := random.IntN(2000)
			if random.IntN(100) == 0 {
				size = cachetest.AnySize(random, 1<<20)
			}
			objects[i] = cachetest.Sized(t, uint64(first+n), size)
			n++
		}
		cachetest.Apply(t, c, objects...)
		if random.IntN(3) == 0 {
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		}
	}
	drained.Wait()
	drain()
	all.Wait()
	synctest.Wait()
	if n := open.Load(); n != 0 {
		t.Errorf("%d watches are still open", n)
	}
	for i, read := range readers {
		switch {
		case i%4 == 2 && read.Err == nil, i%4 == 0 && read.Err == nil && read.Seen == events:
		case i%4 == 1 && errors.Is(read.Err, io.EOF), i%4 == 3 && errors.Is(read.Err, io.EOF) && read.Seen == events:
		default:
			t.Errorf("watch %d: %d events, %v", i, read.Seen, read.Err)
		}
	}
}

// An event that a client reads slowly arrives completely, although no event follows. A client that
// reads nothing is disconnected after the stall time.
func TestSlowReaders(t *testing.T) {
	config := tlsConfig(t)
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 1)
		accepted := newServer(func(*exchange.Request) *exchange.Response {
			resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
			resp.Stream = watch.New(watchOf(t, c))
			return resp
		}, config, 0).connect(t, unbuffered)
		client := overTLS(accepted, "http/1.1", nil)
		if _, err := io.WriteString(client, "GET /watch HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		const large = 1 << 20
		for rv := range uint64(2) {
			cachetest.Apply(t, c, cachetest.Sized(t, 100+rv, large))
			time.Sleep(stall - time.Second) // there is no room for more
			if _, err := io.ReadFull(client, make([]byte, large)); err != nil {
				t.Fatal(err)
			}
		}
		cachetest.Apply(t, c, cachetest.Sized(t, 102, large))
		time.Sleep(2 * stall)
		if rest, err := io.ReadAll(client); err == nil || len(rest) >= large {
			t.Errorf("a client that has not read gets %d bytes, %v", len(rest), err)
		}
	})
}

// watchOf returns a watch of a cache's ConfigMaps that begins at the current state.
func watchOf(t *testing.T, c *watchcache.Cache) watch.Params {
	t.Helper()
	f := cachetest.Filter(t, c)
	cursor, err := c.WatchAfter(f, cachetest.Snapshot(t, c))
	if err != nil {
		t.Fatal(err)
	}
	return watch.Params{
		Cache: c, Cursor: cursor, Filter: f, Draining: context.Background(), Done: func() {},
		Form: wire.NewForm(wire.Choice{}, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}),
	}
}
