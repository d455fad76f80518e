//go:build verify

package access

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const oneConfigMap = "/api/v1/namespaces/" + teamA + "/configmaps/one?resourceVersion=0"

// outlasts sends n requests, atATime of them concurrently. The proxy's memory must not grow by more
// than growth bytes. Afterwards the proxy must still serve the admin.
func (f *front) outlasts(t *testing.T, w *world, n, atATime int, growth int64, ask func(ctx context.Context, i int) error) {
	t.Helper()
	before, _ := f.proxy.MemoryT(t)
	if err := workload.Parallel(t.Context(), n, atATime, ask); err != nil {
		t.Error(err)
	}
	after, _ := f.proxy.MemoryT(t)
	t.Logf("resident memory went from %d to %d MiB", before>>20, after>>20)
	if after-before > growth {
		t.Errorf("resident memory went from %d to %d bytes", before, after)
	}
	if got := f.must(t, w.callers["admin"], request{target: oneConfigMap}); got.status != ok {
		t.Errorf("after the crowd admin gets %d", got.status)
	}
}

// lean is front without the race detector, which takes memory of its own.
func (w *world) lean(t *testing.T) *front {
	t.Helper()
	options := w.frontOptions(t, w.api.URL, proxyUser, "")
	options.NoRace = true
	return frontOf(t, options).warmed(t, w)
}

// Many callers, half of them unknown, do not fill the proxy's memory. Afterwards the proxy still
// serves other callers.
func TestCrowd(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	f := w.lean(t)
	f.warm(t, w.callers["admin"], collections())
	const askers, growth = 32, 64 << 20 // in bytes: some 6 KiB for each caller
	f.outlasts(t, w, crowdSize, askers, growth, func(ctx context.Context, i int) error {
		for token, want := range map[string]int{tokenOf(crowdUser(i)): ok, fmt.Sprintf("garbage-%d", i): unknown} {
			if err := f.expect(ctx, &caller{name: token, token: token}, request{target: oneConfigMap, protocol: cluster.DrawProtocol(token)}, want); err != nil {
				return err
			}
		}
		return nil
	})
}

// A caller without rights sends many requests for lists. Each list has another large selector, or
// is of another resource that does not exist. The proxy keeps almost nothing of these requests,
// sends few requests upstream, and serves other callers meanwhile.
func TestFloodOfQuestions(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	f := w.lean(t)
	f.warm(t, w.callers["admin"], collections())
	const (
		lists, askers = 600, 8
		selector      = 40 << 10 // in bytes
		growth        = 96 << 20 // in bytes; one selector that was kept unchanged took 800 KiB
	)
	large := url.QueryEscape(strings.Repeat(",!a", selector/len(url.QueryEscape(",!a"))))
	began := time.Now()
	f.outlasts(t, w, lists, askers, growth, func(ctx context.Context, i int) error {
		for _, target := range []string{
			fmt.Sprintf("/api/v1/pods?resourceVersion=0&labelSelector=x%d%s", i, large),
			fmt.Sprintf("/api/v1/made%d?resourceVersion=0", i),
			fmt.Sprintf("/apis/made%d.example.com/v1/things?resourceVersion=0", i),
		} {
			if err := f.expect(ctx, w.callers["nobody"], request{target: target}, forbidden); err != nil {
				return err
			}
		}
		if i%50 == 0 {
			return f.expect(ctx, w.callers["one"], request{target: oneConfigMap}, ok)
		}
		return nil
	})
	took := time.Since(began)
	m := f.proxy.MetricsT(t)
	kept := m.Sum("watchproxy_review_cache_bytes", `outcome="access"`)
	discovered := m.Sum("watchproxy_feed_requests_total", `verb="discover"`)
	t.Logf("%d questions in %v: %v bytes of decisions, %v documents of discovery", 3*lists, took, kept, discovered)
	const each = 1 << 10
	if kept > 2*lists*each {
		t.Errorf("%v bytes of decisions are kept", kept)
	}
	// Every two seconds, discovery costs the list of groups and a document of the core group.
	// Requests that began earlier come on top.
	if most := 100 + 3*took.Seconds(); discovered > most {
		t.Errorf("upstream was asked for %v documents of discovery, at most %.0f in %v", discovered, most, took)
	}
}
