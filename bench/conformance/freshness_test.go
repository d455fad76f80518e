package conformance

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// These tests check assumptions of the proxy's consistent reads (watchcache/upstream/fresh,
// Feed.Fresh) at the apiserver itself.

// A list that matches nothing returns etcd's current revision, whichever collection was written
// last.
func TestProbeTellsTheRevision(t *testing.T) {
	for name, target := range map[string]string{
		"namespaced":     "/api/v1/namespaces/watchproxy.none/endpoints?limit=1",
		"cluster-scoped": "/api/v1/nodes?limit=1&fieldSelector=metadata.name%3Dwatchproxy.dev:none",
		"custom":         "/apis/example.com/v1/planets?limit=1&fieldSelector=metadata.name%3Dwatchproxy.dev:none",
		"no watch cache": "/api/v1/namespaces/watchproxy.none/events?limit=1",
	} {
		t.Run(name, func(t *testing.T) {
			written := elsewhere(t)
			got := must(t, apiserver, get(target), 200)
			if rv := revision(t, got); rv < written || gjson.GetBytes(got.Body, "items.#").Int() != 0 {
				t.Errorf("after a write at %d: %s", written, got.Body)
			}
		})
	}
}

// After a probe, the apiserver's cache has reached the probe's revision. So a list not older than
// this revision does not wait, and contains it.
func TestListAtTheProbedRevision(t *testing.T) {
	written := elsewhere(t)
	probed := revision(t, must(t, apiserver, get("/api/v1/namespaces/watchproxy.none/endpoints?limit=1"), 200))
	got := must(t, apiserver, get(fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=NotOlderThan", endpoints.all(), probed)), 200)
	if rv := revision(t, got); rv < probed || probed < written {
		t.Errorf("written %d, probed %d, listed %d", written, probed, rv)
	}
}

// elsewhere writes to a collection that the test does not read, and returns the revision.
func elsewhere(t *testing.T) uint64 {
	t.Helper()
	return object{of: leases, namespace: "default", name: cluster.UniqueName("elsewhere")}.createT(t)
}

func revision(t *testing.T, list reply) uint64 {
	t.Helper()
	rv, err := strconv.ParseUint(gjson.GetBytes(list.Body, "metadata.resourceVersion").Str, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return rv
}
