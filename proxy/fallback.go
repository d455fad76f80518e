package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

const (
	// fallbackReads and fallbackWatches are how many reads upstream has at a time that a cache would
	// answer if it were up to date. They come in crowds. Others wait for fallbackWait.
	fallbackReads   = 64
	fallbackWatches = 256
	fallbackWait    = 10 * time.Second
	// soonerMost is how many lists are left to upstream at a time because it answers sooner; a user
	// has half of them if there are several users.
	soonerMost = 32
	// soonerPatience is how long upstream may take for one at least, before the cache has to answer.
	soonerPatience = 2 * time.Second
	// lostPatience is how long a read waits for an upstream that was lost.
	lostPatience = 5 * time.Second
)

// fallbackLimiter bounds the reads that fall back to upstream. A watch keeps its place for as long as
// it is open.
type fallbackLimiter struct{ reads, watches chan struct{} }

func newFallbackLimiter(reads, watches int) fallbackLimiter {
	return fallbackLimiter{make(chan struct{}, reads), make(chan struct{}, watches)}
}

// admit waits for a place. Without one the response tells the client to come back: by then the cache
// can answer.
func (l fallbackLimiter) admit(ctx context.Context, verb string) (leave func(), refusal *exchange.Response) {
	places := l.reads
	if verb == "watch" {
		places = l.watches
	}
	ctx, cancel := context.WithTimeout(ctx, fallbackWait)
	defer cancel()
	select {
	case places <- struct{}{}:
		return sync.OnceFunc(func() { <-places }), nil
	case <-ctx.Done():
		return nil, exchange.StatusResponse(exchange.TooManyRequests(), exchange.FromProxy)
	}
}
