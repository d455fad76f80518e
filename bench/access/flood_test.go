package access

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// One who may read nothing asks for list after list, each with another large selector or of
// another resource that does not exist. The proxy keeps next to nothing of it, asks upstream
// for little, and serves others meanwhile.
func TestFloodOfQuestions(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	binary, err := cluster.BuildProxy(t.Context(), false) // the race detector's memory is not the proxy's
	if err != nil {
		t.Fatal(err)
	}
	f := w.frontOf(t, binary, proxyUser, "")
	admin, nobody, one := w.callers["admin"], w.callers["nobody"], w.callers["one"]
	f.warm(t, admin, collections())
	const (
		lists, askers = 600, 8
		selector      = 40 << 10 // bytes
		growth        = 96 << 20 // bytes; one kept as it was took 800 KiB
		target        = "/api/v1/namespaces/" + teamA + "/configmaps/one?resourceVersion=0"
	)
	large := url.QueryEscape(strings.Repeat(",!a", selector/len(url.QueryEscape(",!a"))))
	numbers := make(chan int)
	var workers sync.WaitGroup
	for range askers {
		workers.Go(func() {
			for i := range numbers {
				for target, want := range map[string]int{
					fmt.Sprintf("/api/v1/pods?resourceVersion=0&labelSelector=x%d%s", i, large): forbidden,
					fmt.Sprintf("/api/v1/made%d?resourceVersion=0", i):                          forbidden,
					fmt.Sprintf("/apis/made%d.example.com/v1/things?resourceVersion=0", i):      forbidden,
				} {
					got, err := f.ask(t.Context(), nobody, request{target: target, http2: i%2 == 0})
					if err != nil {
						t.Error(err)
					} else if got.status != want {
						t.Errorf("%.80s: %d instead of %d: %.300s", target, got.status, want, got.body)
					}
				}
			}
		})
	}
	before, began := f.resident(t), time.Now()
	for i := range lists {
		if t.Failed() {
			break
		}
		numbers <- i
		if i%50 == 0 {
			if got := f.must(t, one, request{target: target}); got.status != ok {
				t.Errorf("another gets %d", got.status)
			}
		}
	}
	close(numbers)
	workers.Wait()
	took := time.Since(began)
	after := f.resident(t)
	m, err := f.proxy.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept := m.Sum("watchproxy_review_cache_bytes", `outcome="access"`)
	discovered := m.Sum("watchproxy_feed_requests_total", `verb="discover"`)
	t.Logf("%d questions in %v: %v bytes of decisions, %v documents of discovery, resident memory from %d to %d MiB",
		3*lists, took, kept, discovered, before>>20, after>>20)
	const each = 1 << 10
	if kept > 2*lists*each {
		t.Errorf("%v bytes of decisions are kept", kept)
	}
	// The list of groups and a document of the core once in two seconds, and what began before.
	if most := 100 + 3*took.Seconds(); discovered > most {
		t.Errorf("upstream was asked for %v documents of discovery, at most %.0f in %v", discovered, most, took)
	}
	if after-before > growth {
		t.Errorf("resident memory went from %d to %d bytes", before, after)
	}
	if got := f.must(t, admin, request{target: target}); got.status != ok {
		t.Errorf("after the flood admin gets %d", got.status)
	}
}
