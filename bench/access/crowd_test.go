package access

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Many callers, half of whom nobody knows, do not fill the proxy's memory, and others are served after them.
func TestCrowd(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	binary, err := cluster.BuildProxy(t.Context(), false) // the race detector's memory is not the proxy's
	if err != nil {
		t.Fatal(err)
	}
	f := w.frontOf(t, binary, proxyUser, "")
	admin := w.callers["admin"]
	f.warm(t, admin, collections())
	const (
		askers = 32
		growth = 64 << 20 // bytes: some 6 KiB for each
		target = "/api/v1/namespaces/" + teamA + "/configmaps/one?resourceVersion=0"
	)
	before := f.resident(t)
	numbers := make(chan int)
	var workers sync.WaitGroup
	for range askers {
		workers.Go(func() {
			for i := range numbers {
				for token, want := range map[string]int{tokenOf(crowdUser(i)): ok, fmt.Sprintf("garbage-%d", i): unknown} {
					got, err := f.ask(t.Context(), &caller{name: token, token: token}, request{target: target, http2: i%2 == 0})
					if err != nil {
						t.Error(err)
					} else if got.status != want {
						t.Errorf("%s: %d instead of %d: %.300s", token, got.status, want, got.body)
					}
				}
			}
		})
	}
	for i := range crowdSize {
		if t.Failed() {
			break
		}
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	after := f.resident(t)
	m, err := f.proxy.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v reviews; resident memory went from %d to %d MiB", m.Sum("watchproxy_reviews_total"), before>>20, after>>20)
	if after-before > growth {
		t.Errorf("resident memory went from %d to %d bytes", before, after)
	}
	if got := f.must(t, admin, request{target: target}); got.status != ok {
		t.Errorf("after the crowd admin gets %d", got.status)
	}
}

var residentSize = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// resident is how many bytes of memory the proxy has.
func (f *front) resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.proxy.PID()))
	if err != nil {
		t.Fatal(err)
	}
	found := residentSize.FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	kilobytes, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}
