//go:build verify

package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The requests of TestShardSelectors, to an apiserver with the feature gate ShardedListAndWatch.
func TestShardGate(t *testing.T) {
	const first = 36
	if minor < first {
		t.Skip("kube-apiserver has the feature gate since 1.36")
	}
	another(t, cluster.Options{Flags: slices.Concat(longHistory, []string{"--feature-gates=ShardedListAndWatch=true"})})
	if err := defineCustom(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*collection{configMaps, widgets} {
		says := map[bool]string{false: `"shardInfo"`}[c.custom()] // lists of custom resources do not tell
		for i := range 6 {
			c.now = object{of: c, namespace: "default", name: fmt.Sprint("o-", i)}.createT(t)
		}
		t.Run(c.name, func(t *testing.T) { check(t, sharded(c, "default", says)) })
	}
}
