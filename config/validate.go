package config

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Default returns the configuration of an empty file.
func Default() *ProxyConfiguration {
	c := &ProxyConfiguration{APIVersion: APIVersion, Kind: Kind}
	c.SetDefaults()
	return c
}

const secrets = "secrets"

// SetDefaults sets the missing fields to their defaults: those in the tags, and those that depend
// on other fields. There are no defaults elsewhere.
func (c *ProxyConfiguration) SetDefaults() {
	named := func(name string) bool {
		same := func(r Resource) bool { return r.Name == name }
		return slices.ContainsFunc(c.Cache.Resources, same)
	}
	// Settings for other resources must not enable caching of secrets.
	if !named(secrets) && !slices.Contains(c.Cache.Exclude, secrets) {
		c.Cache.Exclude = append(c.Cache.Exclude, secrets)
	}
	// kube-apiserver serves events directly from etcd and sends no bookmarks.
	for _, name := range []string{"events", "events.events.k8s.io"} {
		if !named(name) {
			c.Cache.Resources = append(c.Cache.Resources,
				Resource{Name: name, ConsistentReads: Forward})
		}
	}
	if c.AdminAuthentication.AlwaysAllowPaths == nil {
		c.AdminAuthentication.AlwaysAllowPaths = []string{"/livez", "/readyz"}
	}
	for _, s := range within(setting{value: reflect.ValueOf(c).Elem()}) {
		s.setDefault()
	}
	setMode(&c.Authentication.Mode, c.Listen)
	setMode(&c.AdminAuthentication.Mode, c.AdminListen)
}

func setMode(mode *AuthenticationMode, address string) {
	switch {
	case *mode != "":
	case private(address):
		*mode = NoAuthentication
	default:
		*mode = Delegated
	}
}

// Validate reports all errors of a configuration whose defaults are set.
func (c *ProxyConfiguration) Validate() error {
	var errs field.ErrorList
	for _, s := range within(setting{value: reflect.ValueOf(c).Elem()}) {
		errs = append(errs, s.validate()...)
	}
	errs = append(errs, c.TLS.validate(field.NewPath("tls"))...)
	errs = append(errs, c.validateAccess()...)
	errs = append(errs, c.Upstream.validate(field.NewPath("upstream"))...)
	errs = append(errs, c.Cache.validate(field.NewPath("cache"))...)
	errs = append(errs, c.validateViews(field.NewPath("views"))...)
	return errs.ToAggregate()
}

func (t *TLS) validate(path *field.Path) (errs field.ErrorList) {
	switch {
	case t == nil:
	case t.Sidecar != nil:
		if t.Generated != nil || t.CertFile != "" || t.PrivateKeyFile != "" {
			errs = append(errs, field.Forbidden(path.Child("sidecar"),
				"must not be used together with generated, certFile and privateKeyFile"))
		}
	case t.Generated != nil:
		if t.CertFile != "" || t.PrivateKeyFile != "" {
			errs = append(errs, field.Forbidden(path.Child("generated"),
				"must not be used together with certFile and privateKeyFile"))
		}
		if len(t.Generated.DNSNames) == 0 && len(t.Generated.IPAddresses) == 0 {
			errs = append(errs, field.Required(path.Child("generated", "dnsNames"),
				"name what clients call the proxy, or give ipAddresses"))
		}
	default:
		const both = "a certificate and its private key belong together"
		if t.CertFile == "" {
			errs = append(errs, field.Required(path.Child("certFile"), both))
		}
		if t.PrivateKeyFile == "" {
			errs = append(errs, field.Required(path.Child("privateKeyFile"), both))
		}
	}
	return errs
}

func (c *ProxyConfiguration) validateAccess() (errs field.ErrorList) {
	fail := func(err *field.Error) { errs = append(errs, err) }
	path, a := field.NewPath("authentication"), &c.Authentication
	switch a.Mode {
	case NoAuthentication:
		const delegatedOnly = "is for mode delegated"
		if !private(c.Listen) {
			fail(field.Invalid(path.Child("mode"), a.Mode, c.Listen+" can be reached from "+
				"elsewhere: authenticate clients (delegated), or listen on loopback"))
		}
		if a.Anonymous.Enabled {
			fail(field.Invalid(path.Child("anonymous", "enabled"), true, delegatedOnly))
		}
		if a.X509.ClientCAFile != "" {
			file := path.Child("x509", "clientCAFile")
			fail(field.Invalid(file, a.X509.ClientCAFile, delegatedOnly))
		}
	case Delegated:
		if c.TLS == nil {
			fail(field.Required(field.NewPath("tls"), "clients of "+c.Listen+" are authenticated, "+
				"and credentials are only taken over TLS: give a certificate (certFile, "+
				"privateKeyFile), or listen without authentication on 127.0.0.1"))
		}
		if c.TLS != nil && c.TLS.Sidecar != nil && !private(c.Listen) {
			fail(field.Invalid(field.NewPath("listen"), c.Listen, "must be a loopback address if "+
				"tls.sidecar is set, because its certificate is for clients in the pod"))
		}
	}
	if c.Listen == c.AdminListen && !strings.HasSuffix(c.Listen, ":0") {
		fail(field.Invalid(field.NewPath("adminListen"), c.AdminListen, "must differ from listen"))
	}
	return errs
}

func (u *Upstream) validate(path *field.Path) (errs field.ErrorList) {
	if len(u.Contexts) > 0 && (u.Context != "" || len(u.Servers) > 0) {
		errs = append(errs, field.Forbidden(path.Child("contexts"),
			"must not be used together with context or servers"))
	}
	if len(u.Contexts) > 0 && u.CAFile != "" {
		errs = append(errs, field.Forbidden(path.Child("caFile"),
			"must not be used together with contexts, each of which has its own CA"))
	}
	return errs
}

func (c *Cache) validate(path *field.Path) (errs field.ErrorList) {
	for i, r := range c.Resources {
		if r.MaxAge.Duration > 0 && r.ConsistentReads == Forward {
			errs = append(errs, field.Invalid(path.Child("resources").Index(i).Child("maxAge"),
				r.MaxAge.Duration.String(), "is of no use where consistentReads is forward"))
		}
	}
	for i, s := range c.Scopes {
		at := path.Child("scopes").Index(i)
		errs = append(errs, s.validate(at)...)
		for j, name := range s.Resources {
			if s.Warm && slices.Contains(c.Exclude, name) {
				errs = append(errs, field.Invalid(at.Child("resources").Index(j), name,
					"is excluded from caching, so its cache cannot be warm: "+
						"name it in cache.resources and not in cache.exclude"))
			}
		}
	}
	return errs
}
