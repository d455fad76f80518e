package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// mishaps must not be in the log of a proxy.
var mishaps = []string{"DATA RACE", "panic:"}

// killer kills the proxy at random moments, and checks each proxy that starts after that.
type killer struct {
	*world
	random                   *rand.Rand
	midStart, compared, rows int
}

// The proxy can be killed at any time, even while it starts. After the restart, its answers equal
// upstream's state. Its clients miss nothing.
func TestKills(t *testing.T) {
	seed := cluster.Seed()
	k := &killer{random: rand.New(rand.NewPCG(seed, 1))}
	const each = 5 * time.Second
	s := scenario{
		name: fmt.Sprintf("proxy killed %d times at random moments", *kills),
		long: true, again: true,
		limit: scenarioLimit + time.Duration(*kills)*each,
		disturb: func(t *testing.T, w *world) {
			k.world = w
			k.fill(t)
			for range *kills {
				k.kill(t)
			}
		},
	}
	w := newWorld(t, cluster.APIServerT(t, cluster.Options{Flags: longHistory}), configMaps, s.settings, "")
	v := s.run(t, w, "kills", seed)
	summary := fmt.Sprintf("%s, seed %d.\n\n%s\n%s\n\n%d more proxies were killed before they were ready. "+
		"%d comparisons with upstream covered %d objects, byte for byte.\n", time.Now().UTC().Format(time.DateOnly), seed,
		tableHead, v.row(s.name), k.midStart, k.compared, k.rows)
	t.Log(summary)
	report(t, summary)
	if v.lost+v.duplicated+v.reordered+v.invented+v.stale > 0 || v.relists > 0 {
		t.Errorf("%+v\n%s", v, strings.Join(v.found, "\n"))
	}
	if v.events == 0 || v.answered == 0 || k.rows == 0 {
		t.Error("nothing was seen, so nothing was shown")
	}
}

// fill makes the cache so large that a start takes a while.
func (k *killer) fill(t *testing.T) {
	t.Helper()
	const objects, size, parallel = 1000, 4 << 10, 8
	ballast := k.objects("default")
	err := workload.Parallel(t.Context(), objects, parallel, func(ctx context.Context, i int) error {
		_, err := ballast.Create(ctx, k.of.object(fmt.Sprintf("ballast-%d", i), "red", strings.Repeat("n", size)), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// kill kills the proxy, and sometimes further proxies before they are ready.
func (k *killer) kill(t *testing.T) {
	t.Helper()
	const longest, aStart = 1500, 400 // ms
	time.Sleep(time.Duration(k.random.IntN(longest)) * time.Millisecond)
	k.count(t)
	k.examine(t, k.proxy.Log())
	k.proxy.Kill()
	for k.random.IntN(3) == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(k.random.IntN(aStart))*time.Millisecond)
		err := k.proxy.Start(ctx)
		cancel()
		if err == nil {
			k.proxy.Kill()
			err = errors.New(k.proxy.Log())
		}
		k.midStart++
		k.examine(t, err.Error())
	}
	if err := k.proxy.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.compare(t)
}

func (k *killer) examine(t *testing.T, log string) {
	t.Helper()
	for _, what := range mishaps {
		if at := strings.Index(log, what); at >= 0 {
			t.Errorf("the proxy's log has %q: %.500s", what, log[at:])
		}
	}
}

// compare compares the new proxy's whole state with upstream's at the same resourceVersion, byte
// for byte.
func (k *killer) compare(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenarioLimit)
	defer cancel()
	path := k.of.root + "/" + k.of.Resource
	ours, err := body(ctx, k.client(t), path+"?resourceVersion=0")
	if err != nil {
		t.Fatalf("the new proxy: %v", err)
	}
	at := gjson.GetBytes(ours, "metadata.resourceVersion").Str
	theirs, err := body(ctx, k.direct(t), path+"?resourceVersionMatch=Exact&resourceVersion="+at)
	if err != nil {
		t.Fatalf("upstream at %s: %v", at, err)
	}
	k.compared++
	k.rows += int(gjson.GetBytes(ours, "items.#").Int())
	if !bytes.Equal(ours, theirs) {
		i := 0
		for i < min(len(ours), len(theirs)) && ours[i] == theirs[i] {
			i++
		}
		t.Errorf("the state at %s is another one than upstream's, from byte %d on:\n%.500s\nwhere upstream has\n%.500s", at, i, ours[i:], theirs[i:])
	}
}

// body reads the body of an answer with code 200.
func body(ctx context.Context, s *cluster.Endpoint, target string) ([]byte, error) {
	got, err := s.Ask(ctx, cluster.Get(target))
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("%d: %.200s", got.Status, got.Body)
	}
	return got.Body, err
}

// bodyT is body, but fails the test on an error.
func bodyT(t *testing.T, s *cluster.Endpoint, target string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b, err := body(ctx, s, target)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
