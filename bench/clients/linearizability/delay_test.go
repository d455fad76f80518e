package linearizability

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// delay limits the times by which a relay delays the apiserver's answers.
type delay struct {
	streams time.Duration // lines of the watches that fill the proxy's caches, which have no timeoutSeconds
	answers time.Duration // some of the answers to other reads; it delays nothing else
	only    string        // the only resource whose streams are delayed; empty for all
}

// startDelay starts a relay to the apiserver and returns the path of a kubeconfig for the relay.
func startDelay(t *testing.T, api *cluster.APIServer, d delay, seed uint64) (path string) {
	t.Helper()
	target, err := url.Parse(api.URL)
	cluster.MustT(t, err)
	const idle = 100 // number of kept connections, so that each forwarded read does not need a new one
	transport := &http.Transport{
		DisableCompression:  true,
		MaxIdleConnsPerHost: idle,
		TLSClientConfig:     cluster.Trust(api.CA),
	}
	t.Cleanup(transport.CloseIdleConnections)
	var reads atomic.Uint64
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Authorization", "Bearer "+api.Token) // client-go sends no token without TLS
			r.Out.Header.Del("Accept-Encoding")                    // compressed streams have no lines
		},
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.Method != http.MethodGet {
				return nil
			}
			random := rand.New(rand.NewPCG(seed, reads.Add(1)))
			most := d.streams
			switch query := resp.Request.URL.Query(); {
			case query.Get("watch") != "true" || query.Has("timeoutSeconds"):
				const late = 4 // one in four answers is delayed
				if most = d.answers; random.IntN(late) > 0 {
					return nil
				}
			case !strings.HasSuffix(resp.Request.URL.Path, "/"+d.only) && d.only != "":
				return nil
			}
			resp.Body = newLateBody(resp.Request.Context(), resp.Body, most, random)
			return nil
		},
	})
	t.Cleanup(front.Close)
	return cluster.KubeconfigT(t, front.URL, nil, "")
}

// lateBody is a response body whose lines are delayed and stay in order. The end is delayed like a
// line.
type lateBody struct {
	body    io.ReadCloser
	cancel  context.CancelFunc
	ctx     context.Context // ends when the reader closes the body, so that nothing waits for late lines
	lines   chan lateLine
	err     error  // how the body ended; read it after lines is closed
	rest    []byte // unread part of the current line
	running sync.WaitGroup
}

type lateLine struct {
	text []byte
	due  time.Time
}

// lateMax is the maximum number of lines that can be delayed together. Beyond that, the apiserver
// has to wait.
const lateMax = 1 << 16

func newLateBody(ctx context.Context, body io.ReadCloser, most time.Duration, random *rand.Rand) *lateBody {
	b := &lateBody{body: body, lines: make(chan lateLine, lateMax)}
	b.ctx, b.cancel = context.WithCancel(ctx)
	b.running.Go(func() { b.fetch(most, random) })
	return b
}

// fetch reads ahead and sets the time at which each line is due. Several lines in a row share a
// delay. Lines cannot overtake each other, so with a new delay for each line, the longest delay
// would determine all.
func (b *lateBody) fetch(most time.Duration, random *rand.Rand) {
	defer close(b.lines)
	var delay time.Duration
	var redraw, last time.Time
	for r := bufio.NewReader(b.body); ; {
		text, err := r.ReadBytes('\n')
		now := time.Now()
		if !now.Before(redraw) {
			delay = time.Duration(random.Int64N(int64(most)))
			redraw = now.Add(time.Duration(random.Int64N(int64(most))))
		}
		if due := now.Add(delay); due.After(last) {
			last = due
		}
		select {
		case b.lines <- lateLine{text, last}:
		case <-b.ctx.Done():
			b.err = b.ctx.Err()
			return
		}
		if err != nil {
			b.err = err
			return
		}
	}
}

// Read implements io.Reader.
func (b *lateBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		line, ok := <-b.lines
		if !ok {
			return 0, b.err
		}
		timer := time.NewTimer(time.Until(line.due))
		select {
		case <-timer.C:
		case <-b.ctx.Done():
			timer.Stop()
			return 0, b.ctx.Err()
		}
		b.rest = line.text
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *lateBody) Close() error {
	b.cancel()
	err := b.body.Close()
	b.running.Wait()
	return err
}
