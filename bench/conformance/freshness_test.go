package conformance

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tidwall/gjson"
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

// A probe is a list that matches nothing. A watch of a quiet collection with a timeout of three
// seconds gets a bookmark long before an ordinary watch. The bookmark is at or beyond the revision
// of the previous probe. Without a probe of the same collection there is no such bookmark, because
// only the probe makes the apiserver ask etcd for the progress of this collection.
func TestSideWatchBringsABookmark(t *testing.T) {
	for _, c := range []*collection{endpoints, nodes, planets, widgetsV2} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			from := revision(t, must(t, apiserver, get(c.all()+"?limit=1"), 200))
			elsewhere(t)
			probe := c.all() + "?limit=1&fieldSelector=metadata.name%3Dwatchproxy.dev:none"
			if c.namespaced {
				probe = c.in("watchproxy.none") + "?limit=1"
			}
			probed := revision(t, must(t, apiserver, get(probe), 200))
			began := time.Now()
			s, err := openStream(t.Context(), apiserver, get(fmt.Sprintf("%s?watch=true&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion=%d", c.all(), from)))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			events, err := s.until(func(e Event) bool { return e.Type == "BOOKMARK" })
			if err != nil || len(events) == 0 {
				t.Fatalf("the watch gave %v: %v", events, err)
			}
			last := events[len(events)-1]
			t.Logf("a bookmark at %d after %.1f s, probed %d, watched from %d", last.RV, time.Since(began).Seconds(), probed, from)
			if last.Type != "BOOKMARK" || last.RV < probed {
				t.Errorf("%v does not reach %d", last, probed)
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
	return object{of: leases, namespace: "default", name: unique("elsewhere")}.createT(t)
}

func revision(t *testing.T, list reply) uint64 {
	t.Helper()
	rv, err := strconv.ParseUint(gjson.GetBytes(list.Body, "metadata.resourceVersion").Str, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return rv
}
