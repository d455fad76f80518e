package read

import (
	"context"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// alone reports whether upstream may not answer: it would refuse the read, or might ignore the shard.
func (r *read) alone() bool {
	return r.refusal != nil || r.Shard != nil && r.View.Shards()
}

// selectShard limits a list or watch to its shard if upstream would do so, or if a view does. It
// leaves the read to upstream if the answer cannot be told.
func (r *read) selectShard(ctx context.Context) (err error) {
	if r.Shard == nil {
		return nil
	}
	upstream := object.ShardingWithPages
	if !r.View.Shards() {
		upstream = r.feed.Sharding(ctx)
	}
	switch {
	case upstream == object.ShardingIgnored:
		r.Shard = nil
		return nil
	case upstream == object.ShardingUnknown, upstream == object.ShardingWithoutPages && (r.Limit > 0 || r.Token != "" || r.resource.NoWatchCache):
		return Parameters
	}
	if r.filter, err = r.filter.Shard(r.Shard); err != nil {
		return Parameters
	}
	return nil
}
