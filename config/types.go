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

// ProxyConfiguration configures `watchproxy serve`. Flags take precedence over
// it. Every field may be left out; Default tells the values.
type ProxyConfiguration struct {
	// APIVersion must be watchproxy.dev/v1alpha1.
	APIVersion string `json:"apiVersion"`
	// Kind must be ProxyConfiguration.
	Kind string `json:"kind"`

	// Listen is the address for clients, as host:port or unix:///path/of/a/socket.
	// Without authentication it must be a loopback address or a socket. Port 0 takes a
	// free port. The socket is open to the user that the proxy runs as alone. Without a
	// bearer token, requests are refused that a web page of another origin may have made a browser
	// send, and a browser's exec, attach and port-forward.
	Listen string `json:"listen,omitempty"`
	// TLS makes clients speak TLS, and with it HTTP/2 if they like. Without it they
	// speak plain HTTP/1.1, which is for loopback addresses and sockets.
	TLS *TLS `json:"tls,omitempty"`
	// Authentication says how clients are told apart.
	Authentication Authentication `json:"authentication,omitzero"`
	// Authorization says how long it is trusted that clients may read what they read.
	// It is the apiserver that decides, for each answer from the cache.
	Authorization Authorization `json:"authorization,omitzero"`
	// Limits bound what clients may take.
	Limits Limits `json:"limits,omitzero"`
	// GoawayChance is the probability, from 0 to 0.02, that a request over HTTP/2
	// makes its connection take no further ones. What is under way is not harmed; the
	// client opens another connection, possibly to another replica.
	GoawayChance float64 `json:"goawayChance,omitempty"`
	// AdminListen is the address of the status page, /status, /metrics, /livez and /readyz.
	// Browsers have to name it by an IP address or localhost; so has everybody on a loopback
	// address and for /debug/pprof.
	AdminListen string `json:"adminListen,omitempty"`
	// Upstream is the apiserver to stand in front of.
	Upstream Upstream `json:"upstream,omitzero"`
	// Cache says what is kept and for how long.
	Cache Cache `json:"cache,omitzero"`
	// Drain is the time over which open watches are ended at shutdown, so that
	// clients do not all reconnect at once.
	Drain *metav1.Duration `json:"drain,omitempty"`
	// MemoryBudget is how much memory the process keeps to, without its program. If it is
	// left out, that is the container's limit, or what GOMEMLIMIT says; without them, and
	// with 0, there is no bound. At least 64Mi. The garbage collector keeps to a tenth less, at least 32Mi less. As
	// what is in use comes near that, less is kept that is derived from caches, then less log,
	// and at last requests for what is not cached yet are forwarded.
	MemoryBudget *resource.Quantity `json:"memoryBudget,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty"`
	// LogFormat is json or console, which is for people.
	LogFormat LogFormat `json:"logFormat,omitempty"`
	// AccessLogSampling is the probability, from 0 to 1, that a request is logged when it
	// is answered: who asked for which path (without its query), the answer's code and source, and the
	// Audit-Id, which is the client's if it sent one. 0 logs none.
	AccessLogSampling float64 `json:"accessLogSampling,omitempty"`
	// Profiling serves Go's profiles at /debug/pprof on AdminListen. They show memory
	// addresses and names of functions, and cost CPU while they are taken.
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
	// CertFile is the path of a PEM file with the certificate and whatever leads to
	// its authority. Both files are read again when they change; until both belong
	// together, the former pair is served.
	CertFile string `json:"certFile,omitempty"`
	// PrivateKeyFile is the path of a PEM file with its private key.
	PrivateKeyFile string `json:"privateKeyFile,omitempty"`
}

// Upstream is how to reach the apiserver.
type Upstream struct {
	// Kubeconfig is the path of a kubeconfig file. If it is empty, the service
	// account of the pod is used, else $KUBECONFIG or ~/.kube/config.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context is the context of the kubeconfig to use, if not its current one.
	Context string `json:"context,omitempty"`
	// Contexts are contexts of the kubeconfig whose servers are apiservers of the same
	// cluster, each with its own credentials and authority. The first is asked until it
	// fails, then the next that is fit: one that answers /readyz, is of the same cluster
	// and does not lag behind. It excludes context and servers.
	Contexts []string `json:"contexts,omitempty"`
	// Servers are URLs of apiservers of the same cluster, like contexts, but all with the
	// credentials and the authority of one context or of the service account. They take
	// the place of its own address.
	Servers []string `json:"servers,omitempty"`
}

// Cache configures the watch caches.
type Cache struct {
	// Exclude lists resources that are never cached, as resource or
	// resource.group (pods, deployments.apps), in any version; there are no wildcards. Secrets are always among them, unless Resources
	// names them: to cache secrets is a deliberate choice.
	Exclude []string `json:"exclude,omitempty"`
	// Resources says what is different about some resources. Unless events are
	// among them, their consistent reads are forwarded.
	Resources []Resource `json:"resources,omitempty"`
	// ConsistentReads bounds what reads of the most recent state cost upstream.
	ConsistentReads ConsistentReadsBudget `json:"consistentReads,omitzero"`
	// SyncTimeout is how long the first requests for a resource wait for its
	// cache to be filled before they are forwarded.
	SyncTimeout *metav1.Duration `json:"syncTimeout,omitempty"`
	// IdleTimeout is after how long without a request or an open watch a
	// resource's cache is given up; 0 keeps it. Else at least 1s.
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// SelfCheckInterval is how often each cache is compared with upstream, by the
	// metadata of all its objects at one resourceVersion; 0 is never, else at least 1s. What differs is
	// logged and counted, and the cache is read anew.
	SelfCheckInterval *metav1.Duration `json:"selfCheckInterval,omitempty"`
	// Persistence keeps the caches on disk, so that a restart goes on where it was.
	Persistence Persistence `json:"persistence,omitzero"`
	// OnUpstreamLoss tells what becomes of reads that a cache could answer while
	// upstream cannot be reached: "serve-stale", with a Warning header that tells for
	// how long, or "fail", with 503. The default is serve-stale. Reads that ask for
	// the most recent state fail either way, and open watches stay.
	OnUpstreamLoss OnUpstreamLoss `json:"onUpstreamLoss,omitempty"`
	// MaxStaleness is for how long after upstream was lost reads are served; then
	// they fail. 0 is for ever.
	MaxStaleness *metav1.Duration `json:"maxStaleness,omitempty"`
	// Log bounds each resource's event log, which serves watches from a
	// resourceVersion and the further pages of lists. Whichever bound is
	// reached first holds.
	Log Log `json:"log,omitzero"`
	// Derived bounds what is made of cached objects and kept for the next request:
	// lists compressed, or cut to their metadata.
	Derived Derived `json:"derived,omitzero"`
}

// ConsistentReadsBudget bounds what reads of the most recent state cost upstream, of all resources together.
type ConsistentReadsBudget struct {
	// MaxProbesPerSecond is how often a second upstream is asked where it stands, on behalf of all who
	// wait at the moment. At least 1. Each takes kube-apiserver and etcd one or two milliseconds of
	// processor time. A probe that is not used is saved up for a second.
	MaxProbesPerSecond *int `json:"maxProbesPerSecond,omitempty"`
	// Ledger lets the proxy watch the metadata of all resources that it may list and watch and upstream
	// serves itself, of excluded ones none, while consistent readers have a use for it. Where these
	// watches show all that is written elsewhere, a cache of a quiet resource is known to be up to date
	// without a list. Nothing of what they show is kept but its resourceVersions. The default is true.
	Ledger *bool `json:"ledger,omitempty"`
	// ForwardIfSooner leaves lists to upstream, up to 32 at a time, that it has answered sooner of late than
	// the cache could be shown to be up to date: those of few objects of a large resource, where others
	// write and the ledger may not watch that. Without, they wait, and spare upstream what crowds ask for.
	// The default is true.
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
	// ConsistentReads tells where lists and watches without a resourceVersion are
	// answered, which ask for the most recent state: "cache", once that was shown
	// to be up to date, or "forward", by upstream. The default is cache.
	ConsistentReads ConsistentReads `json:"consistentReads,omitempty"`
	// MaxAge lets a get, list or watch of the most recent state be answered with one that was shown to be
	// up to date no longer ago than that. The answer has an Age header then, in seconds. It is bounded staleness instead of consistency,
	// and not every client can live with it; 0, the default, is never. At least
	// 10ms; what is less than upstream takes to show that a cache is up to date is of no use.
	MaxAge metav1.Duration `json:"maxAge,omitzero"`
	// Aggregated lets the resource be cached even if an aggregated API serves it.
	// Its resourceVersions must be plain integers that only grow.
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
	// Directory is for a file of each cache; empty for none. It is made if need be, and
	// no two proxies may share it. The files hold what the caches hold, for their owner
	// alone to read: of secrets only if they are cached, see Resources.
	Directory string `json:"directory,omitempty"`
	// Interval is how often the caches are saved that have changed, at least 1s. They are
	// saved at shutdown as well.
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// OnUpstreamLoss is what becomes of reads while upstream cannot be reached.
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
