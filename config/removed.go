package config

// removed says what the proxy does without the fields of earlier versions, by path without indexes.
var removed = map[string]string{
	"audit.logCompress":                        "rotated files are not compressed",
	"cache.consistentReads.forwardIfSooner":    "a list waits until the cache is proved up to date",
	"cache.consistentReads.maxProbesPerSecond": "the limit is 400 probes a second",
	"cache.derived":                            "the limit is 64Mi, and less near memoryBudget",
	"cache.idleTimeout":                        "a cache ends after 30 minutes without use",
	"cache.log.maxEvents":                      "a log has 100,000 at most; see maxAge, maxBytes",
	"cache.onUpstreamLoss":                     "cache.maxStaleness: 1ms does what fail did",
	"cache.persistence":                        "clients resume at a new proxy without it",
	"limits.idleTimeout":                       "it is three minutes between requests",
	"limits.maxConnectionsPerIdentity":         "authenticated users have at most half each",
	"limits.maxHeaderBytes":                    "the limit is 64Ki; larger ones need the apiserver",
	"limits.maxRequestBodyBytes":               "3Mi, but of aggregated APIs their own limits",
	"limits.maxURIBytes":                       "the limit is 64Ki, with the headers",
	"limits.readTimeout":                       "30s for headers, and for each pause in a body",
	"limits.writeTimeout":                      "a minute for each part, except in streams",
	"logFormat":                                "the log has JSON lines",
	"profiling":                                "/debug/pprof is there, for authorized users",
	"slowRequestThreshold":                     "requests of two seconds and longer are logged",
	"tls.sidecar.authorityDirectory":           "mount the volume at /run/watchproxy/authority",
	"tls.sidecar.directory":                    "mount it at /run/watchproxy/serviceaccount",
	"tracing":                                  "forwarded requests keep their traceparent",
	"views.shards":                             "the apiserver selects (ShardedListAndWatch)",
}

// removedValues has the values that fields had in earlier versions, like removed.
var removedValues = map[string]string{
	"audit.logMode: batch": "a response waits until its events are written; use blocking",
}
