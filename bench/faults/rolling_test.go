package faults

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// balance distributes connections in turn over the proxies that are ready, like a Service.
func balance(behind []*cluster.Proxy) func() string {
	var next atomic.Int64
	return func() string {
		turn := int(next.Add(1))
		for i := range behind {
			if p := behind[(turn+i)%len(behind)]; isReady(p) {
				return p.Address()
			}
		}
		return ""
	}
}

func isReady(p *cluster.Proxy) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	admin := cluster.NewEndpoint("admin", p.AdminURL, "", nil)
	defer admin.CloseIdle()
	got, err := admin.Ask(ctx, cluster.Get("/readyz"))
	return err == nil && got.Status == http.StatusOK
}

// Two proxies are replaced one after the other. Informers only have to reconnect: none gets a 410,
// although the new proxies have no earlier history, and no watch stays forwarded to the apiserver.
// A reader meanwhile gets every answer, and no answer is older than the one before. The reader uses
// another resource, because the first request decides where a feed's history begins, and a read
// would start the feed at the present.
func TestRollingRestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), fleetLimit)
	defer cancel()
	p := newPort(ctx, t)
	proxies := []*cluster.Proxy{p.proxy, cluster.ProxyT(t, p.opts)}
	config := p.proxy.RESTConfig()
	config.Host = "https://" + cluster.RelayT(t, balance(proxies)).Address()
	config.CAData = slices.Concat(proxies[0].CA, proxies[1].CA)
	f := newFleet(ctx, t, *informing, config)
	p.caughtUp(ctx, t, f)
	stopWriting := p.keepWriting(ctx)
	defer stopWriting()
	reads, stopReading := keepReading(ctx, t, config)
	f.forget()
	for _, proxy := range proxies {
		restart(t, proxy, false)
		p.caughtUp(ctx, t, f)
	}
	stopWriting()
	stopReading()
	asked := p.audit.since(t)
	open := len(p.audit.open)
	t.Logf("%d informers: %d watches resumed, %d began anew, %d told 410, %d requests failed, %d reads; upstream: %+v, %d watches open",
		*informing, f.resumed.Load(), f.states.Load(), f.gone.Load(), f.failed.Load(), *reads, asked, open)
	few := fewInformers()
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
	s := cluster.EndpointT(t, "proxies", config.Host, "", config.CAData)
	ctx, cancel := context.WithCancel(ctx)
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
			cluster.Pause(ctx, 20*time.Millisecond)
		}
	})
	return reads, func() {
		cancel()
		reading.Wait()
	}
}
