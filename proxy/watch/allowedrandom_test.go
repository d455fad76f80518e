package watch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Grants, objects and the speeds of clients change at random. Whenever all rests, each client has the
// objects of the namespaces that it may read. None sees a namespace without a right to it.
func TestAllowedAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) { newAllowedModel(t, seed).run() })
	}
}

// allowedModel is a user with a set of namespaces, and clients that watch.
type allowedModel struct {
	*rights
	r       *rand.Rand
	objects map[string]bool
	revoked map[string]time.Time // the last time
	clients [4]*allowedClient
	begins  atomic.Int64
}

// allowedClient begins anew whenever its watch ends.
type allowedClient struct {
	m    *allowedModel
	slow bool
	mu   sync.Mutex
	has  map[string]bool
}

func newAllowedModel(t *testing.T, seed uint64) *allowedModel {
	t.Helper()
	m := &allowedModel{rights: newRights(t), r: rand.New(rand.NewPCG(seed, 1)), objects: map[string]bool{}, revoked: map[string]time.Time{}}
	m.delay = time.Duration(seed%5) * 100 * time.Millisecond
	return m
}

var modelNamespaces = []string{"a", "a-b", "b", "c", "d", "never"}

func (m *allowedModel) run() {
	ctx, cancel := context.WithCancel(m.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for i := range m.clients {
		m.clients[i] = &allowedClient{m: m, slow: i == 0}
		running.Go(func() { m.clients[i].follow(ctx) })
	}
	for range 4 {
		for range 150 {
			m.step()
			synctest.Wait()
		}
		time.Sleep(3 * allowTTL)
		state := cachetest.Snapshot(m, m.cache)
		var allowed []string
		for _, name := range modelNamespaces {
			if m.allowed[name] {
				allowed = append(allowed, name)
			}
		}
		want := keysOf(state, allowed)
		for i, c := range m.clients {
			c.mu.Lock()
			if !maps.Equal(c.has, want) {
				m.Errorf("client %d has %v, want %v", i, slices.Sorted(maps.Keys(c.has)), slices.Sorted(maps.Keys(want)))
			}
			c.mu.Unlock()
		}
		if begins := m.begins.Load(); m.Failed() {
			m.Fatalf("after %d watches", begins)
		}
	}
}

func (m *allowedModel) step() {
	name := modelNamespaces[m.r.IntN(len(modelNamespaces))]
	switch at := m.r.IntN(10); {
	case at == 0 && name != "never":
		m.Lock()
		if m.allowed[name] = !m.allowed[name]; !m.allowed[name] {
			m.revoked[name] = time.Now()
		}
		m.Unlock()
	case at < 3:
		time.Sleep(time.Duration(m.r.IntN(int(denyTTL))))
	default:
		key := fmt.Sprintf("%s/%d", name, m.r.IntN(2))
		deleted := m.objects[key] && m.r.IntN(2) == 0
		m.writes(deleted, key)
		if m.objects[key] = !deleted; deleted {
			delete(m.objects, key)
		}
	}
}

func (c *allowedClient) follow(ctx context.Context) {
	for ctx.Err() == nil {
		p, names := c.m.opens()
		c.mu.Lock()
		c.has = keysOf(cachetest.Snapshot(c.m, c.m.cache), names)
		c.m.begins.Add(1)
		c.mu.Unlock()
		New(p).Run(ctx, &exchange.ChunkWriter{To: c})
		time.Sleep(100 * time.Millisecond)
	}
}

// Write implements io.Writer.
func (c *allowedClient) Write(written []byte) (int, error) {
	if c.slow {
		time.Sleep(3 * time.Second)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events(written) {
		kind, key, _ := strings.Cut(e, " ")
		namespace, _, _ := strings.Cut(key, "/")
		switch kind {
		case "ADDED", "MODIFIED":
			c.has[key] = true
		case "DELETED":
			delete(c.has, key)
		default:
			continue
		}
		c.m.Lock()
		if revoked := c.m.revoked[namespace]; !c.m.allowed[namespace] && time.Since(revoked) > allowTTL+4*time.Second {
			c.m.Errorf("%s is shown %v after its revocation", e, time.Since(revoked))
		}
		c.m.Unlock()
	}
	return len(written), nil
}
