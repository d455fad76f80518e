package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// pair returns a client's connection and the proxy's end of it.
func pair(config *tls.Config) (client net.Conn, server *conn.Conn) {
	client, accepted := conntest.Pipe(unbuffered)
	server = conn.New(accepted)
	server.Stall = time.Minute
	if config == nil {
		return client, server
	}
	server.Conn = tls.Server(server.Conn, config)
	return overTLS(client, "http/1.1", nil), server
}

// Many watches receive every event once and in order from one pump, however slow some clients are.
// The watches end for different reasons: the client leaves, the time is up, or the server drains.
func TestPump(t *testing.T) {
	seed := cachetest.Seed(t)
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": tlsConfig(t)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { pumpAtRandom(t, config, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func pumpAtRandom(t *testing.T, config *tls.Config, random *rand.Rand) {
	const (
		crowd  = 60
		events = 600
		first  = 10
	)
	c, _ := cachetest.Roomy(t)
	p := &pump{log: zap.NewNop(), Pump: watch.Pump[*pumpedWatch]{Most: 2}}
	draining, drain := context.WithCancel(context.Background())
	defer drain()
	var all, drained, served sync.WaitGroup
	readers := make([]*cachetest.Reader, crowd)
	for i := range crowd {
		params := watchOf(t, c)
		params.Lifetime = time.Hour
		if i%4 == 1 {
			params.Lifetime = time.Second
		}
		params.Draining, params.DrainShare = draining, time.Duration(random.IntN(300))*time.Millisecond
		w := watch.New(params)
		client, server := pair(config)
		served.Go(func() {
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			out := &exchange.ChunkWriter{To: server}
			_, _ = server.Write([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
			p.serve(ctx, leave, server, w, out)
			_ = out.End()
			server.Close()
		})
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
	served.Wait()
	for i, read := range readers {
		switch {
		case i%4 == 2 && read.Err == nil, i%4 == 0 && read.Err == nil && read.Seen == events:
		case i%4 == 1 && errors.Is(read.Err, io.EOF), i%4 == 3 && errors.Is(read.Err, io.EOF) && read.Seen == events:
		default:
			t.Errorf("watch %d: %d events, %v", i, read.Seen, read.Err)
		}
	}
}

// An event that a client reads slowly arrives completely, although no event follows.
func TestPumpSettles(t *testing.T) {
	config := tlsConfig(t)
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 1)
		client, server := pair(config)
		served := pumped(t, c, server, server)
		const large = 1 << 20
		for rv := range uint64(2) {
			go func() { _ = client.(*tls.Conn).Handshake() }()
			cachetest.Apply(t, c, cachetest.Sized(t, 100+rv, large))
			synctest.Wait() // there is no room for more
			if _, err := io.ReadFull(client, make([]byte, large)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		client.Close()
		<-served
	})
}

// betweenWrites lets a test act while the pump writes.
type betweenWrites struct {
	to              io.Writer
	writing, resume chan struct{}
}

func (b *betweenWrites) Write(p []byte) (int, error) {
	b.writing <- struct{}{}
	<-b.resume
	return b.to.Write(p)
}

// An event that arrives while the pump writes the one before is not lost, although no event follows.
func TestEventDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 1)
		client, server := pair(nil)
		out := &betweenWrites{to: server, writing: make(chan struct{}), resume: make(chan struct{})}
		served := pumped(t, c, server, out)
		const first, events = 100, 3
		cachetest.Apply(t, c, cachetest.Sized(t, first, 1))
		for rv := uint64(first); rv < first+events; rv++ {
			<-out.writing
			if rv+1 < first+events {
				cachetest.Apply(t, c, cachetest.Sized(t, rv+1, 1))
			}
			out.resume <- struct{}{}
		}
		read := &cachetest.Reader{Body: bufio.NewReader(client), From: first, Pause: func() {}}
		read.Read(func(seen int) bool { return seen == events })
		if read.Err != nil {
			t.Error(read.Err)
		}
		client.Close()
		<-served
	})
}

// The client of a quiet watch makes TLS send responses and does not read them. After the stall
// time, it is disconnected.
func TestUnsettledQuietWatchIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 1)
		client, server := pair(nil)
		served := pumped(t, c, server, server)
		cachetest.Apply(t, c, cachetest.Sized(t, 100, 1))
		// The pump writes, so the connection is nonblocking.
		if _, err := client.Read(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// As TLS would respond, less than the limit for unsent bytes.
		if _, err := server.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		<-served
		if took := time.Since(began); took < server.Stall || took > 2*server.Stall {
			t.Errorf("it was cut after %v", took)
		}
	})
}

// pumped serves a watch of a cache's ConfigMaps until the client leaves. It writes the watch to the
// writer to.
func pumped(t *testing.T, c *watchcache.Cache, server *conn.Conn, to io.Writer) (served chan struct{}) {
	t.Helper()
	w := watch.New(watchOf(t, c))
	served = make(chan struct{})
	go func() {
		defer close(served)
		defer server.Close()
		ctx, leave := context.WithCancel(context.Background())
		p := &pump{log: zap.NewNop(), Pump: watch.Pump[*pumpedWatch]{Most: 1}}
		p.serve(ctx, leave, server, w, &exchange.ChunkWriter{To: to, Unframed: true})
	}()
	return served
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
