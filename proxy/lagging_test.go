package proxy

import (
	"bufio"
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Over both protocols, clients receive each event once and in order, whatever the sizes of events
// and the clients' pauses.
func TestWatchesOfAllSizes(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	c, _ := cachetest.Roomy(t)
	const crowd, events = 3, 100
	_, address := serveSocket(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, Options{Stall: time.Minute, Limits: testLimits(), AnyHost: true, TLS: selfSigned()})
	var clients sync.WaitGroup
	for _, protocol := range []string{"h2", "http/1.1"} {
		transport := socketTransport(t, protocol)
		for range crowd {
			pauses := rand.New(rand.NewPCG(random.Uint64(), 0))
			clients.Go(func() {
				ctx, leave := context.WithTimeout(t.Context(), testWait)
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
					t.Errorf("%s: %d of %d events: %v", protocol, read.Seen, events, read.Err)
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
