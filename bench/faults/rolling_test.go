package faults

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// balancer passes connections on to those of several proxies that are ready, by turns, as a Service does.
type balancer struct {
	listener net.Listener
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		behind []*cluster.Proxy
		next   int
		open   map[net.Conn]struct{}
	}
}

func startBalancer(t *testing.T, behind ...*cluster.Proxy) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: l}
	b.mu.behind, b.mu.open = behind, map[net.Conn]struct{}{}
	b.running.Go(b.accept)
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		for c := range b.mu.open {
			c.Close()
		}
		b.mu.Unlock()
		b.running.Wait()
	})
	return b
}

func (b *balancer) accept() {
	for {
		near, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.running.Go(func() { b.join(near) })
	}
}

func (b *balancer) join(near net.Conn) {
	defer near.Close()
	p := b.ready()
	if p == nil {
		return
	}
	far, err := net.Dial("tcp", p.URL[len("https://"):])
	if err != nil {
		return
	}
	defer far.Close()
	b.note(true, near, far)
	defer b.note(false, near, far)
	var back sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}
	back.Go(func() { pass(near, far) })
	pass(far, near)
	back.Wait()
}

func (b *balancer) note(open bool, conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		if open {
			b.mu.open[c] = struct{}{}
		} else {
			delete(b.mu.open, c)
		}
	}
}

// ready is the next proxy that says it is, nil if there is none.
func (b *balancer) ready() *cluster.Proxy {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.mu.behind {
		b.mu.next++
		if p := b.mu.behind[b.mu.next%len(b.mu.behind)]; isReady(p) {
			return p
		}
	}
	return nil
}

func isReady(p *cluster.Proxy) bool {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	resp, err := client.Get(p.AdminURL + "/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (b *balancer) replace(i int, p *cluster.Proxy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.behind[i] = p
}

// One proxy of two is replaced, then the other: informers reconnect, and that is all that they notice. None is told that it
// comes from too long ago, although the new proxies know nothing of what was before them, and no watch stays with the
// apiserver. Who reads meanwhile gets each time an answer, and none that is older than the one before. It reads something
// else, for the first to come decides where a feed begins, and a read has no use for the past.
func TestRollingRestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), fleetLimit)
	defer cancel()
	p := newPort(ctx, t, false)
	proxies := []*cluster.Proxy{p.proxy, cluster.ProxyT(t, cluster.ProxyOptions{Args: p.args})}
	b := startBalancer(t, proxies...)
	p.config.Host = "https://" + b.listener.Addr().String()
	f := newFleet(ctx, t, *informing, p.config)
	p.mark(ctx, t)
	if err := f.await(ctx, p.marked); err != nil {
		t.Fatal(err)
	}
	stopWriting := p.keepWriting(ctx)
	defer stopWriting()
	reads, stopReading := keepReading(ctx, t, p.config)
	f.forget()
	for i := range proxies {
		if err := proxies[i].Stop(); err != nil {
			t.Error(err)
		}
		proxies[i] = cluster.ProxyT(t, cluster.ProxyOptions{Args: p.args})
		b.replace(i, proxies[i])
		p.mark(ctx, t)
		if err := f.await(ctx, p.marked); err != nil {
			t.Fatal(err)
		}
	}
	stopWriting()
	stopReading()
	asked, err := p.audit.since()
	if err != nil {
		t.Fatal(err)
	}
	open := len(p.audit.open)
	t.Logf("%d informers: %d watches resumed, %d began anew, %d told 410, %d requests failed, %d reads; upstream: %+v, %d watches open",
		*informing, f.resumed.Load(), f.states.Load(), f.gone.Load(), f.failed.Load(), *reads, asked, open)
	// In which order they come is chance: one may go on from before the new proxy's history.
	few := int64(*informing) / 100
	if f.gone.Load() > few || f.states.Load() > few || int64(asked.forwarded) > few || f.failed.Load() > 0 {
		t.Error("informers noticed more than that their connections ended")
	}
	if f.resumed.Load() < int64(*informing) || *reads == 0 {
		t.Error("nothing was asked, so nothing was shown")
	}
	if most := len(proxies)*len(followed) + int(few); open > most {
		t.Errorf("%d watches are open upstream, of at most %d feeds", open, most)
	}
}

// keepReading reads the most recent state again and again until it is told to stop.
func keepReading(ctx context.Context, t *testing.T, config *rest.Config) (reads *int, stop func()) {
	t.Helper()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := server{url: config.Host, http: &http.Client{Transport: transport}}
	reads = new(int)
	var reading sync.WaitGroup
	reading.Go(func() {
		var last uint64
		for ctx.Err() == nil {
			list, err := body(ctx, s, "/api/v1/namespaces/"+fleetNamespace+"/podtemplates")
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("a read fails: %v", err)
				pause(ctx)
				continue
			}
			*reads++
			rv, err := strconv.ParseUint(gjson.GetBytes(list, "metadata.resourceVersion").Str, 10, 64)
			if err != nil || rv < last {
				t.Errorf("a read of the most recent state at %d, after one at %d: %v", rv, last, err)
			}
			last = rv
			lull(ctx, 20*time.Millisecond)
		}
	})
	return reads, func() {
		cancel()
		reading.Wait()
		s.http.CloseIdleConnections()
	}
}
