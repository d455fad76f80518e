package config

// removed has the fields that earlier versions had, by their paths without indexes, and what to do without
// each.
var removed = map[string]string{
	"cache.consistentReads.forwardIfSooner": "is gone: a list waits until the cache is proved up to date, even if upstream would answer sooner; remove it",
	"cache.persistence":                     "is gone: caches are not saved on disk, and clients resume at a new proxy without them; remove it",
	"tracing":                               "is gone: the proxy sends no spans, and passes the traceparent of a forwarded request on to the apiserver; remove it",
	"views.shards":                          "is gone: a request with a shardSelector is forwarded, and the apiserver selects the shard if its feature gate ShardedListAndWatch is on; remove it",
}
