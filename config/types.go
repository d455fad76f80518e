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
	// proxy's own user can open the socket. Without a bearer token, the proxy refuses requests that
	// a web page of another origin may have made a browser send, and exec, attach and port-forward
	// from browsers.
	Listen string `json:"listen,omitempty"`
	// TLS makes the listener speak TLS, with HTTP/2 and HTTP/1.1. Without it, clients speak plain
	// HTTP/1.1, for loopback addresses and sockets.
	TLS *TLS `json:"tls,omitempty"`
	// Authentication says how clients are authenticated.
	Authentication Authentication `json:"authentication,omitzero"`
	// Authorization says how long the apiserver's decisions about access are trusted. It decides
	// for each answer from the cache.
	Authorization Authorization `json:"authorization,omitzero"`
	// Limits bound what clients can use.
	Limits Limits `json:"limits,omitzero"`
	// GoawayChance is the probability, from 0 to 0.02, that a request over HTTP/2 makes its
	// connection take no further ones. Requests in flight finish. The client opens another
	// connection, possibly to another replica.
	GoawayChance float64 `json:"goawayChance,omitempty"`
	// AdminListen is the address of the status page, /status, /metrics, /livez and /readyz.
	// Browsers must name it by an IP address or localhost. On a loopback address, and for
	// /debug/pprof, so must all clients.
	AdminListen string `json:"adminListen,omitempty"`
	// Upstream is the apiserver behind the proxy.
	Upstream Upstream `json:"upstream,omitzero"`
	// Cache says what is cached and for how long.
	Cache Cache `json:"cache,omitzero"`
	// Drain is the time over which open watches end at shutdown, so that clients do not all
	// reconnect at once.
	Drain *metav1.Duration `json:"drain,omitempty"`
	// MemoryBudget bounds the memory of the process, without its program. The default is the
	// container's limit, or GOMEMLIMIT. Without either, or with 0, there is no bound. At least
	// 64Mi. The garbage collector's limit is a tenth lower, and at least 32Mi lower. Near the
	// budget, the proxy keeps fewer derived bytes, then a shorter log, and at last forwards
	// requests for resources not cached yet.
	MemoryBudget *resource.Quantity `json:"memoryBudget,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty"`
	// LogFormat is json, or console for people.
	LogFormat LogFormat `json:"logFormat,omitempty"`
	// AccessLogSampling is the probability, from 0 to 1, that an answered request is logged: the
	// user, the path without its query, the code, the source of the answer, and the Audit-Id, which
	// is the client's if it sent one. 0 logs none.
	AccessLogSampling float64 `json:"accessLogSampling,omitempty"`
	// Profiling serves Go's profiles at /debug/pprof on AdminListen. Profiles show memory addresses
	// and names of functions, and taking one costs processor time.
	Profiling bool `json:"profiling,omitempty"`
}

// LogFormat is how log lines are written.
type LogFormat string

// The values of [LogFormat].
const (
	JSON    LogFormat = "json"
	Console LogFormat = "console"
)

// TLS is how to serve TLS, 1.2 or later.
type TLS struct {
	// CertFile is the path of a PEM file with the certificate and the chain to its authority. Both
	// files are read again when they change. Until they match, the previous pair is served.
	CertFile string `json:"certFile,omitempty"`
	// PrivateKeyFile is the path of a PEM file with the certificate's private key.
	PrivateKeyFile string `json:"privateKeyFile,omitempty"`
}

// Upstream is how to reach the apiserver.
type Upstream struct {
	// Kubeconfig is the path of a kubeconfig file. If it is empty, the pod's service account is
	// used, or else $KUBECONFIG or ~/.kube/config.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context is the context of the kubeconfig. The default is its current one.
	Context string `json:"context,omitempty"`
	// Contexts are contexts of the kubeconfig for apiservers of the same cluster, each with its own
	// credentials and authority. The first one serves until it fails, then the next healthy one: it
	// answers /readyz, belongs to the same cluster and does not lag behind. Contexts excludes
	// context and servers.
	Contexts []string `json:"contexts,omitempty"`
	// Servers are URLs of apiservers of the same cluster, like contexts, but with the credentials
	// and the authority of one context or of the service account. They replace its own address.
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
	// ConsistentReads bounds the cost upstream of reads of the most recent state.
	ConsistentReads ConsistentReadsBudget `json:"consistentReads,omitzero"`
	// SyncTimeout is how long the first requests for a resource wait for its cache to fill. Then
	// they are forwarded.
	SyncTimeout *metav1.Duration `json:"syncTimeout,omitempty"`
	// IdleTimeout is how long a cache without requests or open watches is kept. 0 keeps it for
	// ever; otherwise at least 1s.
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// SelfCheckInterval is how often each cache is compared with upstream, by the metadata of all
	// its objects at one resourceVersion. 0 is never; otherwise at least 1s. Differences are logged
	// and counted, and the cache is read anew.
	SelfCheckInterval *metav1.Duration `json:"selfCheckInterval,omitempty"`
	// Persistence saves the caches on disk, so that a restart resumes from them.
	Persistence Persistence `json:"persistence,omitzero"`
	// OnUpstreamLoss says how cacheable reads are answered while upstream cannot be reached:
	// "serve-stale", with a Warning header that gives the staleness, or "fail", with 503. The
	// default is serve-stale. Reads of the most recent state always fail. Open watches stay.
	OnUpstreamLoss OnUpstreamLoss `json:"onUpstreamLoss,omitempty"`
	// MaxStaleness is how long stale reads are served after the loss of upstream. Then they fail. 0
	// is for ever.
	MaxStaleness *metav1.Duration `json:"maxStaleness,omitempty"`
	// Log bounds each resource's event log. The log serves watches from a resourceVersion and
	// further pages of lists. The first bound reached applies.
	Log Log `json:"log,omitzero"`
	// Derived bounds the bytes derived from cached objects and kept for later requests, such as
	// compressed lists and lists of metadata.
	Derived Derived `json:"derived,omitzero"`
}

// ConsistentReadsBudget bounds the cost upstream of reads of the most recent state, of all
// resources together.
type ConsistentReadsBudget struct {
	// MaxProbesPerSecond is how often a second the proxy asks upstream for its revision. All
	// current readers share a probe. At least 1. A probe takes kube-apiserver and etcd one or two
	// milliseconds of processor time. Unused probes are saved for a second.
	MaxProbesPerSecond *int `json:"maxProbesPerSecond,omitempty"`
	// Ledger lets the proxy watch the metadata of all resources that it may list and watch and
	// upstream serves itself, except excluded ones, while consistent readers need it. If these
	// watches show all writes elsewhere, the proxy knows without a list that the cache of a quiet
	// resource is up to date. It keeps only the resourceVersions. The default is true.
	Ledger *bool `json:"ledger,omitempty"`
	// ForwardIfSooner forwards lists, up to 32 at a time, if upstream has recently answered them
	// sooner than the cache could be proved up to date. These are lists of few objects of a large
	// resource, while others write and the ledger may not watch their resources. With false they
	// wait, and upstream is spared crowds of readers. The default is true.
	ForwardIfSooner *bool `json:"forwardIfSooner,omitempty"`
}

// Derived bounds derived bytes, of all resources together.
type Derived struct {
	// MaxBytes is how much memory they may take. At least 1Mi.
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}

// Resource says how one resource is cached.
type Resource struct {
	// Name is the resource, or resource.group, in any version.
	Name string `json:"name"`
	// ConsistentReads says where lists and watches of the most recent state, without a
	// resourceVersion, are answered: "cache", once it is proved up to date, or "forward", by
	// upstream. The default is cache.
	ConsistentReads ConsistentReads `json:"consistentReads,omitempty"`
	// MaxAge allows bounded staleness: gets, lists and watches of the most recent state may see a
	// state that was proved up to date at most this long ago. The answer then has an Age header, in
	// seconds. Not every client tolerates this. 0, the default, is never. At least 10ms; a value
	// below the time of a proof has no effect.
	MaxAge metav1.Duration `json:"maxAge,omitzero"`
	// Aggregated allows caching even if an aggregated API serves the resource. Its resourceVersions
	// must be plain integers that only grow.
	Aggregated bool `json:"aggregated,omitempty"`
}

// ConsistentReads is where reads of the most recent state are answered.
type ConsistentReads string

// The values of [ConsistentReads].
const (
	FromCache ConsistentReads = "cache"
	Forward   ConsistentReads = "forward"
)

// Persistence is where and how often caches are saved.
type Persistence struct {
	// Directory holds one file for each cache; empty saves none. It is created if needed. Two
	// proxies must not share it. The files hold what the caches hold, and only their owner can read
	// them. They hold secrets only if secrets are cached, see Resources.
	Directory string `json:"directory,omitempty"`
	// Interval is how often changed caches are saved, at least 1s. Caches are saved at shutdown as
	// well.
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// OnUpstreamLoss is how reads are answered while upstream cannot be reached.
type OnUpstreamLoss string

// The values of [OnUpstreamLoss].
const (
	ServeStale OnUpstreamLoss = "serve-stale"
	Fail       OnUpstreamLoss = "fail"
)

// Log bounds an event log.
type Log struct {
	// MaxAge is how far back the log reaches at most. At least 1s.
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`
	// MaxEvents is how many events it holds at most.
	MaxEvents *int `json:"maxEvents,omitempty"`
	// MaxBytes bounds the memory of the replaced objects in it. At least 1Mi.
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}
