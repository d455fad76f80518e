package read

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

var configMaps = wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}

// pageOf returns a read of one page and its state.
func pageOf(tb testing.TB, objects int, limit int64) (*read, watchcache.Snapshot) {
	tb.Helper()
	cache, snapshot := cachetest.ConfigMaps(tb, objects)
	return &read{reading: reading{
		Request: &exchange.Request{Header: http.Header{}},
		plan: plan{
			Route: exchange.Route{Namespace: "a"}, Params: exchange.Params{Limit: limit}, Kind: wire.List,
		},
		source: source{
			cache: cache, resource: cache.Resource(), filter: cachetest.Filter(tb, cache),
			form: wire.NewForm(wire.Choice{}, configMaps),
		},
		meter: fair.NewMeter(tb.Context(), nil, nil, false),
	}}, snapshot
}

// pageAt returns the response to a read from a key on.
func pageAt(tb testing.TB, r *read, snapshot watchcache.Snapshot, from string) *exchange.Response {
	tb.Helper()
	_, end := r.filter.KeyRange(r.resource)
	resp, err := r.page(snapshot, from, end)
	if err != nil {
		tb.Fatal(err)
	}
	return resp
}

// bodyOf writes and closes a response's body, and returns it.
func bodyOf(t *testing.T, resp *exchange.Response) []byte {
	t.Helper()
	defer resp.Close(0)
	list, ok := resp.Body.(*fair.List)
	if !ok {
		return resp.Bytes()
	}
	var b bytes.Buffer
	if n, err := list.Write(&b, true); err != nil || n != int64(b.Len()) || list.Length >= 0 && n != list.Length {
		t.Fatalf("%d bytes, counted %d, told %d: %v", b.Len(), n, list.Length, err)
	}
	return b.Bytes()
}

func unzipped(t *testing.T, body []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err == nil {
		body, err = io.ReadAll(z)
	}
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func objectOf(tb testing.TB, of *object.Resource, format string, values ...any) *object.Object {
	tb.Helper()
	o, err := of.ParseObject(fmt.Appendf(nil, format, values...))
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// newDerived returns a test's store.
func newDerived(tb testing.TB, limit int64) *derived.Store {
	tb.Helper()
	d := derived.New(limit, prometheus.NewRegistry())
	tb.Cleanup(d.Close)
	return d
}
