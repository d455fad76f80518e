package feed

import (
	"testing"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// The apiserver of an aggregated API has feature gates of its own, which nobody asks about.
func TestShardingOfAggregated(t *testing.T) {
	if got := (&Feed{Aggregated: true}).Sharding(t.Context()); got != object.ShardingUnknown {
		t.Errorf("it is %v", got)
	}
}
