//go:build verify

package shards

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// TestCost compares the proxy's processor time for an event: with one watch of a collection, and
// with watches of 64 disjoint shares of it. In both cases each event is sent once.
func TestCost(t *testing.T) {
	w := sharedWorld(t)
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.off.server.Kubeconfig, TLS: true, NoRace: true, Settings: settings + views})
	home := w.on.server.NamespaceT(t, cluster.UniqueName("cost"))
	const shares, rounds, most = 64, 6, 1.2
	usually, inShares := "/api/v1/namespaces/"+home+"/configmaps?watch=true", "/views/shards/api/v1/namespaces/"+home+"/configmaps?watch=true&shardSelector="
	one, many := []string{usually}, []string{}
	for i := range shares {
		many = append(many, inShares+queryOf(share(i, shares)))
	}
	w.costOf(t, p, home, one) // warms up
	var ofOne, ofMany time.Duration
	for range rounds {
		a, b := w.costOf(t, p, home, one), w.costOf(t, p, home, many)
		t.Logf("%v with one watch, %v with %d", a, b, shares)
		ofOne, ofMany = ofOne+a, ofMany+b
	}
	if ratio := float64(ofMany) / float64(ofOne); ratio > most {
		t.Errorf("%.2f times as much", ratio)
	} else {
		t.Logf("%.2f times as much", ratio)
	}
}

// costOf opens watches, each with its own connection, writes objects, and returns the time.
func (w *world) costOf(t *testing.T, p *cluster.Proxy, home string, targets []string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	const writes = 1000
	seen := make(chan struct{}, writes)
	for _, target := range targets {
		e := cluster.EndpointT(t, "proxy", p.URL, "", p.CA)
		resp, err := e.Watch(ctx, as(inView, cluster.Get(target)))
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() { count(resp, seen) })
	}
	before, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	run := cluster.UniqueName("run")
	for i := range writes {
		if _, err := w.create(ctx, configmaps, home, configmaps.object(fmt.Sprintf("%s-%d", run, i), "red", nil)); err != nil {
			t.Fatal(err)
		}
		cluster.Receive(t, "an event", seen) // one after the other: a single watch would send several together
	}
	after, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	mustT(t, w.on.api, as(direct, cluster.Request{Method: http.MethodDelete, Target: configmaps.path(home)}))
	return after - before
}

// count tells of each new object.
func count(resp *http.Response, seen chan<- struct{}) {
	defer resp.Body.Close()
	for e, err := range conformance.Events(resp) {
		if err != nil {
			return
		}
		if e.Type == "ADDED" {
			seen <- struct{}{}
		}
	}
}
