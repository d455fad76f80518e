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

// ProxyConfiguration configures `watchproxy serve` and `watchproxy sidecar`. Flags take precedence
// over the file. Every field except apiVersion and kind is optional; Default returns the defaults.
type ProxyConfiguration struct {
	// APIVersion must be watchproxy.dev/v1alpha1.
	APIVersion string `json:"apiVersion" oneof:"watchproxy.dev/v1alpha1"`
	// Kind must be ProxyConfiguration.
	Kind string `json:"kind" oneof:"ProxyConfiguration"`

	// Listen is the address for clients, as host:port. Port 0 means any free port. Without
	// authentication, the address must be a loopback address. The proxy refuses some browser
	// requests without a bearer token: exec, attach, port-forward, and requests that a web page of
	// another origin may have caused.
	Listen string `json:"listen,omitempty" default:"127.0.0.1:8001" format:"address"`
	// TLS makes the listener use TLS, with HTTP/2 and HTTP/1.1. Without TLS, the listener uses
	// plain HTTP/1.1, which is for loopback addresses.
	TLS *TLS `json:"tls,omitempty"`
	// Authentication configures the authentication of clients.
	Authentication Authentication `json:"authentication,omitzero"`
	// Authorization configures how long the apiserver's access decisions are trusted. The apiserver
	// authorizes each response from the cache.
	Authorization Authorization `json:"authorization,omitzero"`
	// Limits are the limits for clients. The request line and the headers of a request have at most
	// 64 KiB, and over HTTP/1.1 its path has at most about 8 KiB, else it gets 431. The body of a
	// request for kube-apiserver has at most 3 MiB, its own limit, else it gets 413. Other API
	// groups and the proxy subresource limit it themselves. A connection closes if its client takes
	// longer than 30 seconds for the headers of a request or pauses as long within a body, if it
	// leaves a part of a response that is no stream unread for a minute, and after three minutes
	// without a request. A body must also arrive within a minute and the time that it takes at 16
	// KiB a second.
	Limits Limits `json:"limits,omitzero"`
	// GoawayChance is the probability, from 0 to 0.02, that a request over HTTP/2 makes the proxy
	// send a GOAWAY on its connection. The requests in flight are completed. For further requests
	// the client opens another connection, possibly to another replica.
	GoawayChance float64 `json:"goawayChance,omitempty" min:"0" max:"0.02" reload:"yes"`
	// WatchCompression configures which watches from the cache are compressed, if the client sends
	// Accept-Encoding: gzip. With the default, "auto", these are the watches that the apiserver
	// compresses. Kube-apiserver 1.37 compresses watches that begin with the state and have
	// bookmarks, as informers do; earlier versions compress none. With "always", the proxy
	// compresses all of them, and with "never" none. It compresses each event once for all clients.
	WatchCompression WatchCompression `json:"watchCompression,omitempty" default:"auto" oneof:"auto always never" reload:"yes"`
	// AdminListen is the address of the status page, /status, /metrics, /livez, /readyz and /debug,
	// with Go's profiles at /debug/pprof. It uses HTTP. With tls, the port of an address that other
	// machines can reach accepts both HTTP and HTTPS, with the same certificate. In requests from
	// browsers, the Host header must be an IP address or localhost. If AdminListen is a loopback
	// address or the path is /debug, this rule applies to all clients, except clients whose bearer
	// token the apiserver has accepted.
	AdminListen string `json:"adminListen,omitempty" default:"127.0.0.1:8002" format:"address"`
	// AdminAuthentication configures access to AdminListen.
	AdminAuthentication AdminAuthentication `json:"adminAuthentication,omitzero"`
	// Upstream is the apiserver behind the proxy.
	Upstream Upstream `json:"upstream,omitzero"`
	// Cache configures the caches. A cache ends after 30 minutes without requests and open watches.
	Cache Cache `json:"cache,omitzero"`
	// Views are parts of the API: with less of each object, or fewer namespaces. The addresses of a
	// view are below /views/NAME, for example https://HOST/views/NAME/api/v1/pods. The log and the
	// status name the paths that no cached object has. Views cannot change while the proxy runs.
	Views []View `json:"views,omitempty" unique:"yes"`
	// Drain is the period over which open watches end at shutdown, so that clients do not all
	// reconnect at once.
	Drain *metav1.Duration `json:"drain,omitempty" default:"5s" min:"0s" reload:"yes"`
	// MemoryBudget limits the memory of the process, without the pages of its executable. It must
	// be at least 64Mi. The default is the container's limit, or else no limit. 0 means no limit.
	// The garbage collector's limit is a tenth below the budget, but at least 32Mi below it. If the
	// field is not set, a lower GOMEMLIMIT is the collector's limit instead. Near the budget, the
	// proxy first keeps fewer derived bytes, then shorter event logs. After that, it forwards
	// requests for resources that are not cached yet. If caches still grow, it gives up the largest
	// one, and forwards its requests for ten minutes.
	MemoryBudget *resource.Quantity `json:"memoryBudget,omitempty" min:"64Mi" zero:"ok"`
	// LogLevel is debug, info, warn or error. A reload changes it.
	LogLevel string `json:"logLevel,omitempty" default:"info" oneof:"debug info warn error" reload:"yes"`
	// AccessLogSampling is the probability, from 0 to 1, that a request is logged after its
	// response. The log line has the user, impersonated user, source address, namespace, name,
	// query, status code, source of the response, bytes, durations and Audit-Id. The Audit-Id is
	// the client's if the client sent one. Parameters that may be secrets, such as the command of
	// an exec, are logged without their values. 0 logs no requests.
	AccessLogSampling float64 `json:"accessLogSampling,omitempty" min:"0" max:"1" reload:"yes"`
	// Audit writes an audit log of the requests that the proxy answers itself, because the
	// apiserver does not see these requests. By default there is no audit log.
	Audit *Audit `json:"audit,omitempty"`
}

// WatchCompression says which watches are compressed.
type WatchCompression string

// The values of [WatchCompression].
const (
	CompressAsUpstream WatchCompression = "auto"
	CompressAlways     WatchCompression = "always"
	CompressNever      WatchCompression = "never"
)

// TLS configures TLS for clients, version 1.2 or later.
type TLS struct {
	// CertFile is the path of a PEM file with the certificate and the chain to its CA. When a file
	// changes, the proxy reads the certificate and the key again. Until the two match, it uses the
	// previous pair.
	CertFile string `json:"certFile,omitempty"`
	// PrivateKeyFile is the path of a PEM file with the certificate's private key.
	PrivateKeyFile string `json:"privateKeyFile,omitempty"`
	// Generated lets the proxy create the certificate, instead of certFile and privateKeyFile. All
	// replicas share a CA, which the first replica creates. Each replica renews its own certificate
	// every 20 days, without a restart.
	Generated *GeneratedCertificate `json:"generated,omitempty"`
	// Sidecar lets the proxy create the certificate for the other containers of its pod, instead of
	// certFile and privateKeyFile. Their clients need no other configuration than a pod's usual
	// one: the environment variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, and a
	// volume at /var/run/secrets/kubernetes.io/serviceaccount. Without authentication, requests
	// need a bearer token, even for /version and /healthz. Those with the pod's own token act as
	// the pod's service account, and upstream judges all others. The proxy writes the files of the
	// service account to /run/watchproxy/serviceaccount, the volume that the other containers mount
	// read only: ca.crt, to which it adds its own CA, namespace, and token, which it keeps current.
	// Its CA and private key are in /run/watchproxy/authority, a volume of its container alone, so
	// that its clients still accept it when its container restarts.
	Sidecar *Sidecar `json:"sidecar,omitempty"`
}

// Sidecar has no settings: it is written as sidecar: {}.
type Sidecar struct{}

// GeneratedCertificate configures where the proxy stores its CA, and its names.
type GeneratedCertificate struct {
	// Namespace is the namespace of the Secret and the ConfigMap.
	Namespace string `json:"namespace,omitempty" format:"label"`
	// SecretName is the Secret with the CA and its private key. The Secret must exist and may be
	// empty. The proxy needs the rights to get and update it. If its data is removed, the proxy
	// creates a new CA.
	SecretName string `json:"secretName,omitempty" format:"subdomain"`
	// ConfigMapName is the ConfigMap with the CA's certificate, as ca.crt. The ConfigMap must exist
	// and may be empty. The proxy needs the rights to get and update it.
	ConfigMapName string `json:"configMapName,omitempty" format:"subdomain"`
	// DNSNames are the DNS names of the proxy. At least one DNS name or IP address is required.
	DNSNames []string `json:"dnsNames,omitempty" format:"hostname"`
	// IPAddresses are the IP addresses of the proxy.
	IPAddresses []string `json:"ipAddresses,omitempty" format:"ip"`
}

// Upstream configures the apiserver behind the proxy.
type Upstream struct {
	// Kubeconfig is the path of a kubeconfig file. If the path is empty, the proxy uses the pod's
	// service account, or else $KUBECONFIG, or else ~/.kube/config.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context is the name of a context in the kubeconfig. The default is the current context.
	Context string `json:"context,omitempty"`
	// Contexts are contexts of the kubeconfig for several apiservers of the same cluster, each with
	// its own credentials and CA. The proxy uses the first apiserver until it fails, and then the
	// next healthy apiserver. A healthy apiserver answers /readyz and does not lag behind. The
	// proxy does not check that all apiservers belong to one cluster: it would move to the cluster
	// with the higher resourceVersion. Contexts cannot be combined with context or servers.
	Contexts []string `json:"contexts,omitempty" format:"text" unique:"yes"`
	// Servers are URLs of several apiservers of the same cluster. The proxy chooses among them in
	// the same way as among contexts. All servers share the credentials and the CA of one context
	// or of the service account. The address in that context or service account is not used.
	Servers []string `json:"servers,omitempty" format:"url" unique:"yes"`
	// CAFile is the path of a PEM file with the CAs of upstream's certificates. It replaces the CA
	// of the context or of the service account, for example if upstream is another watchproxy with
	// a certificate of its own. It cannot be combined with contexts.
	CAFile string `json:"caFile,omitempty"`
}

// Cache configures the watch caches.
type Cache struct {
	// Exclude lists resources that are never cached, as resource or resource.group (pods,
	// deployments.apps), in any version, without wildcards. Secrets are also excluded, unless
	// Resources contains them: caching secrets must be a deliberate choice.
	Exclude []string `json:"exclude,omitempty" format:"resource" reload:"yes"`
	// Resources lists settings for individual resources. If events are not in this list, consistent
	// reads of events are forwarded.
	Resources []Resource `json:"resources,omitempty" unique:"yes" reload:"yes"`
	// Scopes limits caches to a part of their resources' objects, for example to a namespace or a
	// node. The narrowest scope that contains all objects of a request answers it, and a namespace
	// only requests whose path names it. All other requests are forwarded. Namespaces and selectors
	// may contain environment variables, as $(NAME). By default, each cache contains the whole
	// resource, or the namespace of the proxy's pod if upstream forbids the whole.
	Scopes []Scope `json:"scopes,omitempty" reload:"yes"`
	// ConsistentReads configures how caches prove that they are up to date.
	ConsistentReads ConsistentReadsProofs `json:"consistentReads,omitzero" reload:"yes"`
	// SyncTimeout is how long the first requests for a resource wait until its cache is filled.
	// After that they are forwarded. Gets and pages wait a tenth of it, because they cost upstream
	// little. If upstream gives no sign of life for a second, up to 64 reads and 32 watches are
	// forwarded at a time, and others wait for the cache for up to a minute. While upstream is slow
	// for other requests, too, a second becomes up to four seconds.
	SyncTimeout *metav1.Duration `json:"syncTimeout,omitempty" default:"10s" min:"0s" reload:"yes"`
	// SelfCheckInterval is the time between two checks of a cache. A check compares how upstream
	// serves the resource, and all objects in the cache with upstream's at the same
	// resourceVersion, byte by byte. Of Tables and aggregated APIs, whose bytes change by
	// themselves, it compares the metadata, and the columns of a Table. Differences are logged and
	// counted, and the cache is filled again from upstream. 0 disables the check; other values must
	// be at least 1s.
	SelfCheckInterval *metav1.Duration `json:"selfCheckInterval,omitempty" default:"1h" min:"1s" zero:"ok"`
	// MaxStaleness is how long a cache that cannot follow upstream answers reads that accept an
	// older state, with a Warning header that contains the staleness. After that, such reads get
	// 503. Reads of the most recent state always fail then, and open watches stay open. 0 means no
	// limit.
	MaxStaleness *metav1.Duration `json:"maxStaleness,omitempty" default:"1h" min:"0s" reload:"yes"`
	// Log limits each resource's event log. The log serves watches from a resourceVersion, and
	// further pages of lists. It has at most 100,000 events. If it reaches a limit, its oldest
	// events are dropped.
	Log Log `json:"log,omitzero" reload:"yes"`
}

// Scope limits caches to a part of their resources' objects.
type Scope struct {
	// Resources lists the resources, as resource or resource.group, in any version. Without
	// resources, the scope is for all resources that no other scope lists.
	Resources []string `json:"resources,omitempty" format:"resource"`
	// Namespaces lists namespaces. Each namespace gets its own cache. Without namespaces, the cache
	// is for all namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// FieldSelector limits the cache to objects with these values of fields, as FIELD=VALUE,
	// separated by commas. A request needs the same requirements, and may have others.
	FieldSelector string `json:"fieldSelector,omitempty"`
	// LabelSelector limits the cache to objects with matching labels. A request needs the same
	// requirements, and may have others.
	LabelSelector string `json:"labelSelector,omitempty"`
	// Warm fills the caches of the listed resources when the proxy starts, and keeps them without
	// requests, for which other caches end after 30 minutes. The caches have JSON, in the newest
	// stable versions. /readyz fails until they are filled, and /readyz/caches shows the reason.
	// Other versions and encodings, such as protobuf, get caches at their first requests. Warm
	// cannot change while the proxy runs.
	Warm bool `json:"warm,omitempty"`
}

// ConsistentReadsProofs configures how caches prove that they are up to date.
type ConsistentReadsProofs struct {
	// Ledger lets the proxy watch the metadata of many resources while there are many consistent
	// readers. These are the resources that upstream serves itself (not through an aggregated API)
	// and that the proxy may list and watch, except excluded resources. If all recent writes went
	// to other resources, the cache of a quiet resource is up to date. The watches prove this
	// without a list. The ledger keeps only the resourceVersions.
	Ledger *bool `json:"ledger,omitempty" default:"true"`
}

// Resource configures the cache of a resource.
type Resource struct {
	// Name is the resource or resource.group, in any version.
	Name string `json:"name" format:"resource"`
	// ConsistentReads configures lists and watches of the most recent state (without a
	// resourceVersion). With "cache", the proxy answers from the cache once the cache is proved up
	// to date. With "forward", upstream answers.
	ConsistentReads ConsistentReads `json:"consistentReads,omitempty" default:"cache" oneof:"cache forward"`
	// MaxAge allows bounded staleness. Gets, lists and watches of the most recent state may return
	// a state that was proved up to date at most this long ago, except gets of custom resources
	// that a webhook converts. The response then has an Age header, in seconds. Some clients do not
	// tolerate this. Requests with a Cache-Control header, such as those of another proxy, get the
	// most recent state. 0, the default, allows no staleness; other values must be at least 10ms.
	// A value below the duration of a proof has no effect.
	MaxAge metav1.Duration `json:"maxAge,omitzero" min:"10ms" zero:"ok"`
	// Aggregated allows caching even if an aggregated API serves the resource. The resource's
	// resourceVersions must be integers that only increase.
	Aggregated bool `json:"aggregated,omitempty"`
}

// ConsistentReads is the source of responses to reads of the most recent state.
type ConsistentReads string

// The values of [ConsistentReads].
const (
	FromCache ConsistentReads = "cache"
	Forward   ConsistentReads = "forward"
)

// Log limits an event log.
type Log struct {
	// MaxAge limits the age of the events in the log. It must be at least 1s.
	MaxAge *metav1.Duration `json:"maxAge,omitempty" default:"5m" min:"1s"`
	// MaxBytes limits the memory of replaced and deleted objects in the log, at least 1Mi.
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty" default:"256Mi" min:"1Mi"`
}
