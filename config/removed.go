package config

// removed says what the proxy does without the fields of earlier versions, by path without indexes.
var removed = map[string]string{
	"audit.logCompress": "rotated files are not compressed",
	"cache.consistentReads.forwardIfSooner": "a list waits until the cache is proved up to " +
		"date, even if upstream would answer sooner",
	"cache.consistentReads.maxProbesPerSecond": "the limit is 400 probes a second",
	"cache.derived": "the limit of derived bytes is 64Mi, " +
		"and less near memoryBudget",
	"cache.idleTimeout": "a cache ends after 30 minutes without requests " +
		"and watches",
	"cache.log.maxEvents": "a log has at most 100,000 events, " +
		"and cache.log.maxAge and maxBytes limit it, too",
	"cache.onUpstreamLoss": "serve-stale is what the proxy does, " +
		"and cache.maxStaleness: 1ms does what fail did",
	"cache.persistence": "caches are not saved on disk, " +
		"and clients resume at a new proxy without them",
	"limits.idleTimeout": "a connection stays open for three minutes " +
		"between requests",
	"limits.maxConnectionsPerIdentity": "an authenticated user has at most half of the " +
		"connections",
	"limits.maxHeaderBytes": "the request line and the headers have at most " +
		"64Ki, and larger requests have to be sent to the apiserver",
	"limits.maxRequestBodyBytes": "the body of a request for kube-apiserver has at " +
		"most 3Mi, its own limit, and aggregated APIs limit it themselves",
	"limits.maxURIBytes": "the request line and the headers have at most " +
		"64Ki",
	"limits.readTimeout": "a client has 30 seconds for the headers of a " +
		"request, and for each pause within its body",
	"limits.writeTimeout": "a client may leave a part of a response unread " +
		"for a minute, unless the response is a stream",
	"logFormat": "the log has JSON lines",
	"profiling": "the profiles at /debug/pprof are always there " +
		"for those who may use the other paths below /debug",
	"slowRequestThreshold": "requests of two seconds and longer are logged",
	"tls.sidecar.authorityDirectory": "mount the volume of the proxy's CA at " +
		"/run/watchproxy/authority",
	"tls.sidecar.directory": "mount the volume that the other containers " +
		"share at /run/watchproxy/serviceaccount",
	"tracing": "the proxy sends no spans, " +
		"and passes the traceparent of a forwarded request on to the apiserver",
	"views.shards": "a request with a shardSelector is forwarded, " +
		"and the apiserver selects the shard if its feature gate ShardedListAndWatch is on",
}

// removedValues has the values that fields had in earlier versions, like removed.
var removedValues = map[string]string{
	"audit.logMode: batch": "a response waits until its events are written, " +
		"so that no event is lost; use blocking",
}
