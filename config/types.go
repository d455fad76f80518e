package config

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The type of the configuration file.
const (
	APIVersion = "watchproxy.dev/v1alpha1"
	Kind       = "ProxyConfiguration"
)

// ProxyConfiguration configures `watchproxy serve`. Flags take precedence. Every field except
// apiVersion and kind is optional; Default returns the defaults.
type ProxyConfiguration struct {
	// APIVersion must be watchproxy.dev/v1alpha1.
	APIVersion string `json:"apiVersion"`
	// Kind must be ProxyConfiguration.
	Kind string `json:"kind"`

	// Listen is the address for clients, as host:port or unix:///path/of/a/socket. Without
	// authentication it must be a loopback address or a socket. Port 0 takes a free port. Only the
	// proxy's own user can open the socket. The proxy refuses a request without a bearer token if a
	// web page of another origin may have made a browser send it, and if a browser sends exec,
	// attach or port-forward.
	Listen string `json:"listen,omitempty"`
	// TLS makes the listener speak TLS, with HTTP/2 and HTTP/1.1. Without TLS, clients speak plain
	// HTTP/1.1. This is for loopback addresses and Unix sockets.
	TLS *TLS `json:"tls,omitempty"`
	// Authentication says how clients are authenticated.
	Authentication Authentication `json:"authentication,omitzero"`
	// Authorization says how long the apiserver's decisions about access are trusted. The apiserver
	// authorizes each answer from the cache.
	Authorization Authorization `json:"authorization,omitzero"`
	// Limits bound what clients can use.
	Limits Limits `json:"limits,omitzero"`
	// GoawayChance is the probability, from 0 to 0.02, that a request over HTTP/2 makes the proxy
	// send a GOAWAY on its connection. This request and others in flight finish. For further
	// requests the client opens another connection, possibly to another replica.
	GoawayChance float64 `json:"goawayChance,omitempty"`
	// AdminListen is the address of the status page, /status, /metrics, /livez and /readyz. The
	// Host header of a browser's request must be an IP address or localhost. If AdminListen is a
	// loopback address, and for /debug/pprof, this applies to all clients.
	AdminListen string `json:"adminListen,omitempty"`
	// Upstream is the apiserver behind the proxy.
	Upstream Upstream `json:"upstream,omitzero"`
	// Cache says what is cached and for how long.
	Cache Cache `json:"cache,omitzero"`
	// Drain is the time over which open watches end at shutdown, so that clients do not all
	// reconnect at once.
	Drain *metav1.Duration `json:"drain,omitempty"`
	// MemoryBudget bounds the memory of the process, not counting the pages of its executable. It
	// must be at least 64Mi. The default is the container's limit, or else GOMEMLIMIT. 0 means no
	// bound, which is also the default without these two. The garbage collector's limit is a tenth,
	// and at least 32Mi, below the budget. Near the budget, the proxy keeps fewer derived bytes,
	// then shorter event logs, and then forwards requests for resources that are not cached yet.
	MemoryBudget *resource.Quantity `json:"memoryBudget,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty"`
	// LogFormat is json, or console, which is easier for people to read.
	LogFormat LogFormat `json:"logFormat,omitempty"`
	// AccessLogSampling is the probability, from 0 to 1, that an answered request is logged: the
	// user, the path without its query, the status code, the source of the answer, and the
	// Audit-Id, which is the client's if the client sent one. 0 logs no requests.
	AccessLogSampling float64 `json:"accessLogSampling,omitempty"`
	// Profiling serves Go's profiles at /debug/pprof on AdminListen. Profiles show memory addresses
	// and names of functions, and taking one costs processor time.
	Profiling bool `json:"profiling,omitempty"`
}

// LogFormat is the format of log lines.
type LogFormat string

// The values of [LogFormat].
const (
	JSON    LogFormat = "json"
	Console LogFormat = "console"
)

// TLS configures TLS, 1.2 or later, for clients.
type TLS struct {
	// CertFile is the path of a PEM file with the certificate and the chain to its CA. The
	// certificate and the key are read again when their files change. Until the two match, the
	// previous pair is served.
	CertFile string `json:"certFile,omitempty"`
	// PrivateKeyFile is the path of a PEM file with the certificate's private key.
	PrivateKeyFile string `json:"privateKeyFile,omitempty"`
}

// Upstream says how to reach the apiserver.
type Upstream struct {
	// Kubeconfig is the path of a kubeconfig file. If it is empty, the pod's service account is
	// used, or else $KUBECONFIG or ~/.kube/config.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context is the context of the kubeconfig. The default is the kubeconfig's current context.
	Context string `json:"context,omitempty"`
	// Contexts are contexts of the kubeconfig for apiservers of the same cluster, each with its own
	// credentials and CA. The proxy uses the first one until it fails, and then the next healthy
	// one. A healthy apiserver answers /readyz, belongs to the same cluster and does not lag
	// behind. Contexts cannot be combined with context or servers.
	Contexts []string `json:"contexts,omitempty"`
	// Servers are URLs of apiservers of the same cluster. The proxy chooses among them as among
	// contexts. All share the credentials and the CA of one context or of the service account,
	// whose own address is not used.
	Servers []string `json:"servers,omitempty"`
}

// Cache configures the watch caches.
type Cache struct {
	// Exclude lists resources that are never cached, as resource or resource.group (pods,
	// deployments.apps), in any version, without wildcards. Secrets are always excluded unless
	// Resources names them: caching secrets must be a deliberate choice.
	Exclude []string `json:"exclude,omitempty"`
	// Resources lists settings for single resources. Consistent reads of events are forwarded
	// unless events are listed here.
	Resources []Resource `json:"resources,omitempty"`
	// ConsistentReads limits the load that reads of the most recent state put on upstream.
	ConsistentReads ConsistentReadsBudget `json:"consistentReads,omitzero"`
	// SyncTimeout is the time for which the first requests for a resource wait for its cache to
	// fill. After that they are forwarded.
	SyncTimeout *metav1.Duration `json:"syncTimeout,omitempty"`
	// IdleTimeout is the time for which a cache is kept without requests or open watches. 0 means
	// no limit; other values must be at least 1s.
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// SelfCheckInterval is the time between two checks of a cache. A check compares the metadata of
	// all objects in the cache and upstream, at the same resourceVersion. Differences are logged
	// and counted, and the cache is filled from upstream again. 0 disables the check; other values
	// must be at least 1s.
	SelfCheckInterval *metav1.Duration `json:"selfCheckInterval,omitempty"`
	// Persistence saves the caches on disk, so that a restart resumes from them.
	Persistence Persistence `json:"persistence,omitzero"`
	// OnUpstreamLoss says how cacheable reads are answered while upstream cannot be reached. The
	// default, "serve-stale", answers from the cache, with a Warning header that gives the
	// staleness. "fail" answers with 503. Either way, reads of the most recent state fail, and open
	// watches stay open.
	OnUpstreamLoss OnUpstreamLoss `json:"onUpstreamLoss,omitempty"`
	// MaxStaleness is the time for which stale reads are served after the loss of upstream. After
	// that they fail. 0 means no limit.
	MaxStaleness *metav1.Duration `json:"maxStaleness,omitempty"`
	// Log bounds each resource's event log. The log serves watches from a resourceVersion and
	// further pages of lists. When it reaches any of the bounds, the oldest events are dropped.
	Log Log `json:"log,omitzero"`
	// Derived bounds the bytes derived from cached objects and kept for later requests, such as
	// compressed lists and lists of metadata.
	Derived Derived `json:"derived,omitzero"`
}

// ConsistentReadsBudget limits the load that reads of the most recent state put on upstream. All
// resources share the limit.
type ConsistentReadsBudget struct {
	// MaxProbesPerSecond limits how often the proxy asks upstream for its revision, at least 1. All
	// current readers share a probe. A probe takes kube-apiserver and etcd one or two milliseconds
	// of processor time. Probes left unused in a second can be used in the next one.
	MaxProbesPerSecond *int `json:"maxProbesPerSecond,omitempty"`
	// With Ledger, the proxy watches the metadata of many resources while there are consistent
	// readers. These are the resources that upstream serves itself (not through an aggregated API)
	// and that the proxy may list and watch, except excluded ones. If these watches show that all
	// recent writes went to other resources, then the cache of a quiet resource is up to date, and
	// no list is needed to prove it. The ledger keeps only the resourceVersions. The default is
	// true.
	Ledger *bool `json:"ledger,omitempty"`
	// ForwardIfSooner forwards a list, up to 32 lists at a time, if upstream recently answered such
	// lists faster than the proxy could prove its cache up to date. This happens to lists of few
	// objects of a large resource during writes to other resources that the ledger may not watch.
	// With false such lists wait for the proof, which spares upstream many requests. The default is
	// true.
	ForwardIfSooner *bool `json:"forwardIfSooner,omitempty"`
}

// Derived bounds the derived bytes of all resources together.
type Derived struct {
	// MaxBytes bounds the memory of derived bytes. At least 1Mi.
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}

// Resource says how one resource is cached.
type Resource struct {
	// Name is the resource, or resource.group, in any version.
	Name string `json:"name"`
	// ConsistentReads says who answers lists and watches of the most recent state (without a
	// resourceVersion): "cache", the cache once it is proved up to date, or "forward", upstream.
	// The default is cache.
	ConsistentReads ConsistentReads `json:"consistentReads,omitempty"`
	// MaxAge allows bounded staleness: gets, lists and watches of the most recent state may see a
	// state that was proved up to date at most this long ago. The answer then has an Age header, in
	// seconds. Not every client tolerates this. 0, the default, allows no staleness; other values
	// must be at least 10ms. A value below the time that a proof takes has no effect.
	MaxAge metav1.Duration `json:"maxAge,omitzero"`
	// Aggregated allows caching even if an aggregated API serves the resource. The resource's
	// resourceVersions must be integers that only increase.
	Aggregated bool `json:"aggregated,omitempty"`
}

// ConsistentReads says who answers reads of the most recent state.
type ConsistentReads string

// The values of [ConsistentReads].
const (
	FromCache ConsistentReads = "cache"
	Forward   ConsistentReads = "forward"
)

// Persistence says where and how often caches are saved.
type Persistence struct {
	// Directory is the path of a directory with one file for each cache. If it is empty, no caches
	// are saved. The proxy creates the directory if needed. Two proxies must not share it. The
	// files have the same content as the caches, and only their owner can read them. They contain
	// secrets only if secrets are cached, see Resources.
	Directory string `json:"directory,omitempty"`
	// Interval is the time between two saves of a changed cache, at least 1s. Caches are saved at
	// shutdown as well.
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// OnUpstreamLoss says how reads are answered while upstream cannot be reached.
type OnUpstreamLoss string

// The values of [OnUpstreamLoss].
const (
	ServeStale OnUpstreamLoss = "serve-stale"
	Fail       OnUpstreamLoss = "fail"
)

// Log bounds an event log.
type Log struct {
	// MaxAge bounds the age of the events in the log. At least 1s.
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`
	// MaxEvents bounds the number of events in the log.
	MaxEvents *int `json:"maxEvents,omitempty"`
	// MaxBytes bounds the memory of replaced and deleted objects that the log still holds. At least
	// 1Mi.
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}
