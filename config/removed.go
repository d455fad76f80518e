package config

// removed says what the proxy does without the fields of earlier versions, by path without indexes.
var removed = map[string]string{
	"audit.logCompress":                        "rotated files are not compressed",
	"cache.consistentReads.forwardIfSooner":    "a list waits until the cache is proved up to date",
	"cache.consistentReads.maxProbesPerSecond": "the limit is 400 probes a second",
	"cache.derived":                            "the limit is 64Mi, and less near memoryBudget",
	"cache.idleTimeout":                        "a cache ends after 30 minutes without use",
	"cache.log.maxEvents":                      "a log has at most 100,000",
	"cache.onUpstreamLoss":                     "cache.maxStaleness: 1ms does what fail did",
	"cache.persistence":                        "clients resume at a new proxy without it",
	"limits.idleTimeout":                       "it is three minutes between requests",
	"limits.maxConnectionsPerIdentity":         "a user has at most half of the connections",
	"limits.maxHeaderBytes":                    "the limit is 64Ki; larger ones need the apiserver",
	"limits.maxRequestBodyBytes":               "the limit is 3Mi, as in kube-apiserver",
	"limits.maxURIBytes":                       "the limit is 64Ki, with the headers",
	"limits.readTimeout":                       "30s for headers, and for each pause in a body",
	"limits.writeTimeout":                      "one minute for each part of a response",
	"logFormat":                                "the log has JSON lines",
	"profiling":                                "/debug/pprof is there, for authorized users",
	"slowRequestThreshold":                     "requests of two seconds and longer are logged",
	"tls.sidecar.authorityDirectory":           "it is /run/watchproxy/authority",
	"tls.sidecar.directory":                    "it is /run/watchproxy/serviceaccount",
	"tracing":                                  "forwarded requests keep their traceparent",
	"views.shards":                             "requests with a shardSelector are forwarded",
}

// removedValues has the values that fields had in earlier versions, like removed.
var removedValues = map[string]string{
	"audit.logMode: batch": "a response waits until its events are written; use blocking",
}
