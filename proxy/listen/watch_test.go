package listen

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// An event that a client reads slowly arrives completely, although no event follows. A client that
// reads nothing is disconnected after the stall time.
func TestSlowReaders(t *testing.T) {
	var c *watchcache.Cache
	talk(t, func(*exchange.Request) *exchange.Response { return watching(t, c) }, tlsConfig(t), unbuffered, func(client *peer) {
		c, _ = cachetest.ConfigMaps(t, 1)
		client.sends(get)
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

// An open watch does not keep its request in memory.
func TestOpenWatchKeepsNoRequest(t *testing.T) {
	var c *watchcache.Cache
	var seen weak.Pointer[exchange.Request]
	talk(t, func(req *exchange.Request) *exchange.Response {
		seen = weak.Make(req)
		return watching(t, c)
	}, tlsConfig(t), unbuffered, func(client *peer) {
		c, _ = cachetest.ConfigMaps(t, 1)
		client.sends(get)
		if runtime.GC(); seen.Value() != nil {
			t.Error("the request is kept")
		}
	})
}

// watching returns a response that is a watch of a cache's ConfigMaps.
func watching(t *testing.T, c *watchcache.Cache) *exchange.Response {
	t.Helper()
	resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	resp.Body = watch.New(watchOf(t, c))
	return resp
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
		Plan: watch.Plan{
			Filter: f,
			Form:   wire.NewForm(wire.Choice{}, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}),
		},
		Feed:   watch.Feed{Cache: c, Cursor: cursor, Lag: new(watch.Lag)},
		Server: watch.Server{Draining: context.Background()},
	}
}
