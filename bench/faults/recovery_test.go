package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	recoveryWriters = 8
	recoveryReadyz  = 10 * time.Millisecond // between requests for it
	recoveryLull    = 2 * time.Second
	recoveryLate    = 2 * time.Second // later watchers are explained in the log
	recoveryStep    = 2 * time.Minute // limit for each restart
	// asksPerSecond limits the requests of a proxy to an apiserver that is down. The streams do not
	// all end at the same time, so there are a few more.
	asksPerSecond = 4
	asksMore      = 10
)

// recovery measures how soon the watchers of many resources are up to date after restarts of the
// apiserver.
type recovery struct {
	*world
	all      []resource
	audit    *cluster.AuditLog
	watching sync.WaitGroup
	seen     []atomic.Pointer[marked] // of each resource
	written  []time.Time              // when the last mark of each was acknowledged
	ended    atomic.Int64             // number of watches that ended
	mark     int64
	outages  []outage
}

// marked is the last mark that a watcher has seen.
type marked struct {
	mark int64
	at   time.Time
}

// outage is one restart.
type outage struct {
	killed      bool
	down, ready time.Time
	fresh       []time.Duration // from ready until each watcher has seen a later write
}

const recoveryHead = `| apiserver | restarts | downtime (s) | from /readyz until a watcher is up to date (s): median | p99 | max | requests/s during the downtime | max in one second | requests in the 1st second after it: median | max | in the 2nd | in the 3rd |
|---|---|---|---|---|---|---|---|---|---|---|---|`

// measureRecovery restarts the apiserver several times, every second time by a kill. It returns a
// table of the times until all watchers are up to date. Each downtime is at least away.
func measureRecovery(t *testing.T, restarts, feeds int, away time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(restarts+2)*recoveryStep)
	defer cancel()
	r := newRecovery(ctx, t, feeds)
	for i := range restarts {
		r.restartServer(ctx, t, i%2 == 1, away)
	}
	asked := r.asked(t)
	r.judge(t, asked)
	var table strings.Builder
	fmt.Fprintf(&table, "%d resources (%d of them custom), each with a watcher.\n\n%s\n", feeds, feeds-builtIns(feeds), recoveryHead)
	for _, killed := range []bool{false, true} {
		row := r.row(killed, asked)
		t.Log(row)
		fmt.Fprintln(&table, row)
	}
	return table.String()
}

// builtIn are built-in resources whose objects need only a name.
var builtIn = []resource{
	configMaps,
	{schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "/api/v1", "ServiceAccount", "spec"},
	{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "/apis/coordination.k8s.io/v1", "Lease", "spec"},
	{schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "/api/v1", "ResourceQuota", "spec"},
	{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, "/apis/rbac.authorization.k8s.io/v1", "Role", "spec"},
}

// builtIns is the number of feeds of built-in resources. The others are of custom resources.
func builtIns(feeds int) int { return min(len(builtIn), feeds/2) }

func newRecovery(ctx context.Context, t *testing.T, feeds int) *recovery {
	t.Helper()
	r := &recovery{audit: &cluster.AuditLog{Path: filepath.Join(t.TempDir(), "audit.log")}, seen: make([]atomic.Pointer[marked], feeds), written: make([]time.Time, feeds)}
	api := cluster.APIServerT(t, cluster.Options{AuditLog: r.audit.Path})
	r.world = newWorld(t, api, configMaps, "", "")
	r.all = slices.Clone(builtIn[:builtIns(feeds)])
	for i := len(r.all); i < feeds; i++ {
		r.of = resource{schema.GroupVersionResource{Group: "faults.test", Version: "v1", Resource: fmt.Sprintf("gadgets%d", i)}, "/apis/faults.test/v1", fmt.Sprintf("Gadget%d", i), "spec"}
		r.of.define(ctx, t, r.world)
		r.all = append(r.all, r.of)
	}
	client := r.client(t)
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t.Cleanup(func() {
		cancel()
		r.watching.Wait()
	})
	for i, of := range r.all {
		_, err := r.dynamic.Resource(of.GroupVersionResource).Namespace("default").Create(ctx, of.object(markName, "0", "0"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Watch(watching, cluster.Get(of.watch("default", "", "")))
		if err != nil {
			t.Fatal(err)
		}
		r.watching.Go(func() { r.watch(watching, resp, i) })
	}
	r.write(ctx, t)
	return r
}

// watch records the marks that a watch delivers.
func (r *recovery) watch(ctx context.Context, resp *http.Response, i int) {
	defer resp.Body.Close()
	for e, err := range conformance.Events(resp) {
		now := time.Now()
		if err != nil || e.Type == "ERROR" {
			break
		}
		object := gjson.GetBytes(e.Line, "object.metadata")
		n, err := strconv.ParseInt(object.Get("labels.colour").Str, 10, 64)
		if object.Get("name").Str == markName && err == nil {
			r.seen[i].Store(&marked{n, now})
		}
	}
	if ctx.Err() == nil {
		r.ended.Add(1)
	}
}

// write changes the mark of each resource and waits until all watchers have seen it.
func (r *recovery) write(ctx context.Context, t *testing.T) {
	t.Helper()
	r.mark++
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"colour":"%d"}}}`, r.mark)
	err := workload.Parallel(ctx, len(r.all), recoveryWriters, func(ctx context.Context, i int) error {
		objects := r.dynamic.Resource(r.all[i].GroupVersionResource).Namespace("default")
		for {
			_, err := objects.Patch(ctx, markName, types.MergePatchType, patch, metav1.PatchOptions{})
			if r.written[i] = time.Now(); err == nil || ctx.Err() != nil {
				return err
			}
			cluster.Pause(ctx, recoveryReadyz)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.seen {
		for last := r.seen[i].Load(); last == nil || last.mark < r.mark; last = r.seen[i].Load() {
			if ctx.Err() != nil || r.ended.Load() > 0 {
				t.Fatalf("the watcher of %s has not seen mark %d; %d watches have ended: %v", r.all[i].Resource, r.mark, r.ended.Load(), ctx.Err())
			}
			cluster.Pause(ctx, recoveryReadyz)
		}
	}
}

// restartServer restarts the apiserver while the watchers watch.
func (r *recovery) restartServer(ctx context.Context, t *testing.T, kill bool, away time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, recoveryStep)
	defer cancel()
	cluster.Pause(ctx, recoveryLull+rand.N(recoveryLull))
	o := outage{killed: kill, down: time.Now()}
	if kill {
		r.api.Kill()
	} else if err := r.api.Stop(); err != nil {
		t.Error(err)
	}
	cluster.Pause(ctx, away)
	direct, starting := r.direct(t), make(chan error, 1)
	go func() { starting <- r.api.Start(ctx) }()
	for o.ready.IsZero() {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		resp, err := direct.Watch(asking, cluster.Get("/readyz"))
		if err == nil {
			o.ready = time.Now()
			resp.Body.Close()
		}
		cancel()
		if ctx.Err() != nil {
			t.Fatal(errors.Join(ctx.Err(), <-starting))
		}
		cluster.Pause(ctx, recoveryReadyz)
	}
	r.write(ctx, t)
	if err := <-starting; err != nil {
		t.Fatal(err)
	}
	for i := range r.seen {
		fresh := r.seen[i].Load().at.Sub(o.ready)
		if o.fresh = append(o.fresh, fresh); fresh > recoveryLate {
			r.explain(t, i, o, fresh)
		}
	}
	r.outages = append(r.outages, o)
	cluster.Pause(ctx, recoveryLull) // so that late requests are counted too
	if n := r.ended.Load(); n > 0 {
		t.Fatalf("%d watches have ended", n)
	}
}

// explain logs what is known about a watcher that was late.
func (r *recovery) explain(t *testing.T, i int, o outage, fresh time.Duration) {
	t.Helper()
	name := r.all[i].Resource
	t.Logf("the watcher of %s was up to date after %v, what it was to see was acknowledged after %v", name, fresh, r.written[i].Sub(o.ready))
	for line := range strings.Lines(r.proxy.Log()) {
		at, err := time.Parse("2006-01-02T15:04:05.000Z", gjson.Get(line, "ts").Str)
		if err == nil && !at.Before(o.down) && (gjson.Get(line, "resource").Str == name || gjson.Get(line, "server").Exists()) {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// asked returns the times of the feeds' requests, from the apiserver's audit log, and of the
// connections that no server accepted.
func (r *recovery) asked(t *testing.T) []time.Time {
	t.Helper()
	all := r.up.Refused()
	known := map[string]bool{}
	for _, record := range r.audit.PeekT(t) {
		if record.UserAgent == feedAgent && !known[record.AuditID] {
			known[record.AuditID] = true
			all = append(all, record.RequestReceivedTimestamp)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

// between returns the times from began on and before over.
func between(all []time.Time, began, over time.Time) []time.Time {
	first, _ := slices.BinarySearchFunc(all, began, time.Time.Compare)
	last, _ := slices.BinarySearchFunc(all, over, time.Time.Compare)
	return all[first:last]
}

// busiest returns the largest number of times within a second.
func busiest(all []time.Time) (most int) {
	for i, at := range all {
		most = max(most, len(between(all[i:], at, at.Add(time.Second))))
	}
	return most
}

// judge fails the test if an apiserver that is down got many requests.
func (r *recovery) judge(t *testing.T, asked []time.Time) {
	t.Helper()
	for _, o := range r.outages {
		away := o.ready.Sub(o.down).Seconds()
		if n := len(between(asked, o.down, o.ready)); n > int(asksPerSecond*away)+asksMore {
			t.Errorf("%d requests to an apiserver that was away for %.1f s", n, away)
		}
	}
}

func (r *recovery) row(killed bool, asked []time.Time) string {
	const seconds = 3
	var fresh []time.Duration
	var away []time.Duration
	var busy, asks int
	var back [seconds][]int
	for _, o := range r.outages {
		if o.killed != killed {
			continue
		}
		fresh = append(fresh, o.fresh...)
		away = append(away, o.ready.Sub(o.down))
		during := between(asked, o.down, o.ready)
		asks += len(during)
		busy = max(busy, busiest(during))
		for i := range back {
			began := o.ready.Add(time.Duration(i) * time.Second)
			back[i] = append(back[i], len(between(asked, began, began.Add(time.Second))))
		}
	}
	slices.Sort(fresh)
	slices.Sort(away)
	slices.Sort(back[0])
	total := time.Duration(0)
	for _, a := range away {
		total += a
	}
	how := "restarted"
	if killed {
		how = "killed"
	}
	return fmt.Sprintf("| %s | %d | %.1f | %.2f | %.2f | %.2f | %.1f | %d | %d | %d | %d | %d |", how, len(away), at(away, 0.5).Seconds(),
		at(fresh, 0.5).Seconds(), at(fresh, 0.99).Seconds(), at(fresh, 1).Seconds(), float64(asks)/total.Seconds(), busy,
		at(back[0], 0.5), at(back[0], 1), slices.Max(back[1]), slices.Max(back[2]))
}

// at returns a quantile of sorted values.
func at[T any](sorted []T, quantile float64) T {
	return sorted[min(int(quantile*float64(len(sorted))), len(sorted)-1)]
}
