package grants

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// one is a user's request that takes turns.
type one struct{}

func (one) User() string { return "one" }
func (one) Attended(ctx context.Context) (context.Context, func()) {
	return ctx, func() {}
}

// A read of many namespaces seeks their decisions in turn with other expensive reads, and does not hold its
// slot while it waits for reviews.
func TestManyDecisionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(apiserver).access(t)
		cache, _ := cachetest.Roomy(t)
		changes := make([]watchcache.Change, 0, 1000)
		for i, name := range numbered(cap(changes)) {
			o, err := cache.Resource().ParseObject([]byte(`{"metadata":{"name":"x","namespace":"` + name + `","uid":"u","resourceVersion":"` + strconv.Itoa(i+2) + `"}}`))
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, watchcache.Change{Object: o})
		}
		if err := cache.Writer().Apply(changes, time.Now()); err != nil {
			t.Fatal(err)
		}
		f, err := object.NewFilter(cache.Resource(), "", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		route := exchange.Route{GVR: cache.Resource().GVR, Verb: "list"}
		n, err := New(Config{
			Access: a, View: &exchange.View{Name: "v"},
			Asked: exchange.Asked{Route: route}, User: &user.DefaultInfo{Name: "one"},
		})
		if err != nil {
			t.Fatal(err)
		}
		slots := fair.NewPool(1, false)
		meter := fair.NewMeter(t.Context(), one{}, &fair.Slots{Short: slots, Long: slots}, false)
		n.From(NewEras(), "one", cache, f, &meter)
		if !slots.Try("other", 1) {
			t.Fatal("no slot is free")
		}
		const busy = 10 * time.Second
		began := time.Now()
		time.AfterFunc(busy, func() { slots.Give("other", 1) })
		_, err = n.Decide(t.Context(), cachetest.Snapshot(t, cache))
		if took := time.Since(began); err != nil || took != busy || len(n.Shown()) > 0 {
			t.Errorf("it took %v, and shows %v: %v", took, n.Shown(), err)
		}
		if slots.Taken() > 0 {
			t.Error("it holds a slot")
		}
	})
}
