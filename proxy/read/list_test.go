package read

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/query"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

var configMaps = wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}

// pageOf returns a read of one page and its state.
func pageOf(tb testing.TB, objects int, limit int64) (*read, watchcache.Snapshot) {
	tb.Helper()
	cache, snapshot := cachetest.ConfigMaps(tb, objects)
	return &read{
		meter:   fair.NewMeter(tb.Context(), nil, nil, false),
		Request: &exchange.Request{Header: http.Header{}}, Params: query.Params{Limit: limit}, Route: exchange.Route{Namespace: "a"},
		cache: cache, resource: cache.Resource(), filter: cachetest.Filter(tb, cache),
		form: wire.NewForm(wire.Choice{}, configMaps),
	}, snapshot
}

func itemsOf(tb testing.TB, r *read, snapshot watchcache.Snapshot, from, to string) (items int) {
	tb.Helper()
	resp, err := r.page(snapshot, from, to)
	if err != nil {
		tb.Fatal(err)
	}
	for _, span := range resp.List.(*derived.List).Spans {
		items += span.Hi - span.Lo
	}
	return items
}

func BenchmarkPage(b *testing.B) {
	for _, size := range []int{1_000, 10_000, 100_000} {
		r, snapshot := pageOf(b, size, 500)
		_, end := r.filter.KeyRange(r.resource)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp, err := r.page(snapshot, fmt.Sprintf("a/c-%06d", size/2), end)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := resp.List.WriteTo(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// newDerived returns a test's store.
func newDerived(tb testing.TB, limit int64) *derived.Store {
	tb.Helper()
	d := derived.New(limit, prometheus.NewRegistry())
	tb.Cleanup(d.Close)
	return d
}
