package hostile

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// memoryLimit is the chart's default memory limit (resources.limits.memory).
const memoryLimit = 1 << 30

// target is a proxy under attack.
type target struct {
	proxy   *cluster.Proxy
	address string // host:port
}

// noLedger turns the ledger off, because it could start or stop between two counts of goroutines.
// Clients cannot make the ledger larger.
const noLedger = "cache: {consistentReads: {ledger: false}}\n"

// startFront starts the proxy. Its profiles show the size of the heap after a collection.
func (w *world) startFront(t *testing.T) *target {
	t.Helper()
	t.Setenv("GOMAXPROCS", "2") // the chart's proxies have two processors
	p := cluster.ProxyT(t, cluster.ProxyOptions{
		TLS: true, NoRace: true, Args: []string{"--authentication=delegated"},
		Settings: fmt.Sprintf("drain: 100ms\nmemoryBudget: %d\n%s", w.memory, noLedger),
		// The user is an admin, so that a client with the proxy's rights is refused nothing.
		Kubeconfig: w.api.Kubeconfig,
	})
	return &target{proxy: p, address: p.Address()}
}

// census has the resources that a proxy uses at a moment.
type census struct {
	goroutines, descriptors, connections int
	watches, forwards                    int
	heap                                 int64 // after a collection, without derived bytes
}

// census counts the proxy's resources. It makes the proxy collect its garbage, to measure the heap.
func (p *target) census(t *testing.T) (c census, err error) {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.proxy.PID()))
	if err != nil {
		return c, err
	}
	for _, fd := range fds {
		// The descriptor may be closed by now.
		link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.proxy.PID(), fd.Name()))
		if strings.HasPrefix(link, "socket:") {
			c.connections++
		}
	}
	c.descriptors = len(fds)
	m, err := p.proxy.Metrics(t.Context())
	if err != nil {
		return c, err
	}
	if c.goroutines, err = p.goroutines(); err != nil {
		return c, err
	}
	c.watches = int(m.Sum("watchproxy_watches"))
	c.forwards = int(m.Sum("watchproxy_forwards_in_flight"))
	c.heap = int64(m.Sum("go_memstats_heap_alloc_bytes")) - int64(m.Sum("watchproxy_derived_bytes"))
	return c, nil
}

// goroutines returns the number of goroutines except fasthttp's idle workers, which wait ten
// seconds for the next connection.
func (p *target) goroutines() (n int, err error) {
	profile, err := p.profile("goroutine?debug=1")
	if err != nil {
		return 0, err
	}
	for group := range strings.SplitSeq(profile, "\n\n") {
		counted, stack, ok := strings.Cut(group, " @ ")
		counted = counted[strings.LastIndexByte(counted, '\n')+1:]
		_, top, _ := strings.Cut(stack, "\n")
		top, _, _ = strings.Cut(top, "\n")
		if !ok || strings.Contains(top, ".(*workerPool).workerFunc") {
			continue
		}
		many, err := strconv.Atoi(counted)
		if err != nil {
			return 0, fmt.Errorf("a goroutine profile says %.100q", group)
		}
		n += many
	}
	return n, nil
}

// collect makes the proxy collect its garbage twice, because pools release their objects only in
// the second collection.
func (p *target) collect() error {
	_, first := p.profile("heap?gc=1")
	_, second := p.profile("heap?gc=1")
	return errors.Join(first, second)
}

func (p *target) profile(name string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, p.proxy.AdminURL+"/debug/pprof/"+name, nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	resp, err := (&http.Client{Timeout: limit}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// alive reports whether the process still runs. A zombie process has no memory.
func (p *target) alive() bool {
	_, _, err := cluster.MemoryOf(p.proxy.PID())
	return err == nil
}

// peak returns the peak memory of the proxy. It excludes the pages of its executable, which the
// kernel can drop and read again.
func (p *target) peak() (int64, error) {
	_, peak, err := cluster.MemoryOf(p.proxy.PID())
	if err != nil {
		return 0, err
	}
	program, err := cluster.ProgramOf(p.proxy.PID())
	return peak - program, err
}

// within reports whether the proxy uses no more than before, with some slack because connections to
// the apiserver come and go.
func (c census) within(before census) bool {
	const goroutines, descriptors = 24, 8
	return c.goroutines <= before.goroutines+goroutines && c.descriptors <= before.descriptors+descriptors &&
		c.connections <= before.connections+descriptors && c.watches <= before.watches && c.forwards <= before.forwards
}

// settle waits until the proxy uses no more than before, and returns the last census.
func (p *target) settle(t *testing.T, before census) census {
	t.Helper()
	const pause = 50 * time.Millisecond
	for end := time.Now().Add(recoveryLimit); ; time.Sleep(pause) {
		after, err := p.census(t)
		late := time.Now().After(end)
		switch {
		case err != nil && (late || !p.alive()): // a busy proxy may need another request
			t.Error(err)
			return after
		case err == nil && (late || after.within(before)):
			return after
		}
	}
}

// recoveryLimit is the maximum time in which a proxy must release the resources of attackers that
// have left. It is long, because only deadlines detect attackers that leave silently.
const recoveryLimit = 2 * time.Minute
