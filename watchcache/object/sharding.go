package object

// Sharding is what an apiserver does with the shard selector of a list or watch.
type Sharding int

const (
	// ShardingUnknown means that only the apiserver's own answer shows it.
	ShardingUnknown Sharding = iota
	// ShardingIgnored means that the apiserver answers as without the selector.
	ShardingIgnored
	// ShardingWithoutPages means that it selects, but perhaps as kube-apiserver 1.36 does: pages count
	// the remaining objects of all shards, and watches of etcd (Resource.NoWatchCache) show them.
	ShardingWithoutPages
	// ShardingWithPages means that it selects. As with other selectors, pages do not tell how many
	// objects remain.
	ShardingWithPages
)
