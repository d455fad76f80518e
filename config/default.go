package config

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const secrets = "secrets"

// Default returns the configuration of an empty file.
func Default() *ProxyConfiguration {
	c := &ProxyConfiguration{APIVersion: APIVersion, Kind: Kind}
	c.SetDefaults()
	return c
}

// SetDefaults sets the missing fields to their defaults. There are no defaults elsewhere.
func (c *ProxyConfiguration) SetDefaults() {
	set(&c.Listen, "127.0.0.1:8001")
	set(&c.AdminListen, "127.0.0.1:8002")
	setPointer(&c.Drain, metav1.Duration{Duration: 5 * time.Second})
	set(&c.LogLevel, "info")
	set(&c.LogFormat, JSON)
	c.Audit.setDefaults()
	setPointer(&c.SlowRequestThreshold, metav1.Duration{Duration: 2 * time.Second})
	c.setAccessDefaults()
	if c.TLS != nil && c.TLS.Sidecar != nil {
		set(&c.TLS.Sidecar.Directory, "/run/watchproxy/serviceaccount")
		set(&c.TLS.Sidecar.AuthorityDirectory, "/run/watchproxy/authority")
	}
	// Settings for other resources must not enable caching of secrets.
	if !slices.ContainsFunc(c.Cache.Resources, func(r Resource) bool { return r.Name == secrets }) && !slices.Contains(c.Cache.Exclude, secrets) {
		c.Cache.Exclude = append(c.Cache.Exclude, secrets)
	}
	// kube-apiserver serves events directly from etcd and sends no bookmarks.
	for _, name := range []string{"events", "events.events.k8s.io"} {
		if !slices.ContainsFunc(c.Cache.Resources, func(r Resource) bool { return r.Name == name }) {
			c.Cache.Resources = append(c.Cache.Resources, Resource{Name: name, ConsistentReads: Forward})
		}
	}
	for i := range c.Cache.Resources {
		set(&c.Cache.Resources[i].ConsistentReads, FromCache)
	}
	setPointer(&c.Cache.ConsistentReads.MaxProbesPerSecond, 400)
	setPointer(&c.Cache.ConsistentReads.Ledger, true)
	setPointer(&c.Cache.SyncTimeout, metav1.Duration{Duration: 10 * time.Second})
	setPointer(&c.Cache.IdleTimeout, metav1.Duration{Duration: 30 * time.Minute})
	setPointer(&c.Cache.SelfCheckInterval, metav1.Duration{Duration: time.Hour})
	set(&c.WatchCompression, CompressAsUpstream)
	set(&c.Cache.OnUpstreamLoss, ServeStale)
	setPointer(&c.Cache.MaxStaleness, metav1.Duration{Duration: time.Hour})
	setPointer(&c.Cache.Log.MaxAge, metav1.Duration{Duration: 5 * time.Minute})
	setPointer(&c.Cache.Log.MaxEvents, 100_000)
	setPointer(&c.Cache.Log.MaxBytes, resource.MustParse("256Mi"))
	setPointer(&c.Cache.Derived.MaxBytes, resource.MustParse("64Mi"))
}

func set[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

// setAccessDefaults sets the defaults of authentication, authorization and limits.
func (c *ProxyConfiguration) setAccessDefaults() {
	mode := Delegated
	if private(c.Listen) {
		mode = NoAuthentication
	}
	set(&c.Authentication.Mode, mode)
	mode = Delegated
	if private(c.AdminListen) {
		mode = NoAuthentication
	}
	set(&c.AdminAuthentication.Mode, mode)
	if c.AdminAuthentication.AlwaysAllowPaths == nil {
		c.AdminAuthentication.AlwaysAllowPaths = []string{"/livez", "/readyz"}
	}
	setPointer(&c.Authentication.Webhook.CacheTTL, metav1.Duration{Duration: time.Minute})
	setPointer(&c.Authorization.Webhook.CacheAuthorizedTTL, metav1.Duration{Duration: time.Minute})
	setPointer(&c.Authorization.Webhook.CacheUnauthorizedTTL, metav1.Duration{Duration: 10 * time.Second})
	setPointer(&c.Authorization.WatchRecheckInterval, metav1.Duration{Duration: 5 * time.Minute})
	l := &c.Limits
	setPointer(&l.MaxHeaderBytes, resource.MustParse("64Ki"))
	setPointer(&l.MaxURIBytes, resource.MustParse("64Ki"))
	setPointer(&l.MaxRequestBodyBytes, resource.MustParse("3Mi"))
	setPointer(&l.ReadTimeout, metav1.Duration{Duration: 30 * time.Second})
	setPointer(&l.WriteTimeout, metav1.Duration{Duration: time.Minute})
	setPointer(&l.IdleTimeout, metav1.Duration{Duration: 3 * time.Minute})
	setPointer(&l.MaxConnections, 100_000)
	setPointer(&l.MaxConnectionsPerIdentity, 50_000)
	setPointer(&l.MaxWatchesPerIdentity, 50_000)
	setPointer(&l.MaxForwardsInFlight, 400)
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
