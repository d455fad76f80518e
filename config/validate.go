package config

import (
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate reports all errors of a configuration whose defaults are set.
func (c *ProxyConfiguration) Validate() error { return c.validate().ToAggregate() }

func (c *ProxyConfiguration) validate() (errs field.ErrorList) {
	errs = append(errs, validateOnly(field.NewPath("apiVersion"), c.APIVersion, APIVersion)...)
	errs = append(errs, validateOnly(field.NewPath("kind"), c.Kind, Kind)...)
	errs = append(errs, validateListen(field.NewPath("listen"), c.Listen)...)
	errs = append(errs, c.TLS.validate(field.NewPath("tls"))...)
	errs = append(errs, c.validateAccess()...)
	errs = append(errs, c.Limits.validate(field.NewPath("limits"))...)
	errs = append(errs, validateShare(field.NewPath("goawayChance"), c.GoawayChance, goawayMax)...)
	errs = append(errs, validateOneOf(field.NewPath("watchCompression"), c.WatchCompression,
		CompressAsUpstream, CompressAlways, CompressNever)...)
	errs = append(errs, validateAddress(field.NewPath("adminListen"), c.AdminListen)...)
	errs = append(errs, c.AdminAuthentication.validate(field.NewPath("adminAuthentication"))...)
	if c.Listen == c.AdminListen && !strings.HasSuffix(c.Listen, ":0") {
		errs = append(errs, field.Invalid(field.NewPath("adminListen"), c.AdminListen, "must differ from listen"))
	}
	errs = append(errs, validateDuration(field.NewPath("drain"), c.Drain, 0)...)
	errs = append(errs, validateOneOf(field.NewPath("logLevel"), c.LogLevel, "debug", "info", "warn", "error")...)
	if q := c.MemoryBudget; q != nil && !q.IsZero() {
		errs = append(errs, validateSize(field.NewPath("memoryBudget"), q, leastMemory, math.MaxInt64)...)
	}
	errs = append(errs, c.Upstream.validate(field.NewPath("upstream"))...)
	errs = append(errs, validateOneOf(field.NewPath("logFormat"), c.LogFormat, JSON, Console)...)
	errs = append(errs, validateShare(field.NewPath("accessLogSampling"), c.AccessLogSampling, 1)...)
	errs = append(errs, c.Audit.validate(field.NewPath("audit"))...)
	errs = append(errs, validateDuration(field.NewPath("slowRequestThreshold"), c.SlowRequestThreshold, 0)...)
	errs = append(errs, c.Cache.validate(field.NewPath("cache"))...)
	return append(errs, c.validateViews(field.NewPath("views"))...)
}

func validateOnly(path *field.Path, value, only string) field.ErrorList {
	switch value {
	case only:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "must be "+only)}
	}
	return field.ErrorList{field.NotSupported(path, value, []string{only})}
}

// goawayMax is kube-apiserver's own limit. With a larger chance, clients would reconnect very
// often.
const goawayMax = 0.02

const (
	// leastMemory is slightly more than the process needs without any cache.
	leastMemory = 64 << 20
	// leastBytes is enough for a large object, or for a page of small objects. In smaller values,
	// the unit is probably missing.
	leastBytes = 1 << 20
)

func (t *TLS) validate(path *field.Path) (errs field.ErrorList) {
	if t == nil {
		return nil
	}
	if t.Sidecar != nil && (t.Generated != nil || t.CertFile != "" || t.PrivateKeyFile != "") {
		errs = append(errs, field.Forbidden(path.Child("sidecar"), "must not be used together with generated, certFile and privateKeyFile"))
	}
	if t.Sidecar != nil {
		return append(errs, t.Sidecar.validate(path.Child("sidecar"))...)
	}
	if t.Generated != nil {
		if t.CertFile != "" || t.PrivateKeyFile != "" {
			errs = append(errs, field.Forbidden(path.Child("generated"), "must not be used together with certFile and privateKeyFile"))
		}
		return append(errs, t.Generated.validate(path.Child("generated"))...)
	}
	const both = "a certificate and its private key belong together"
	if t.CertFile == "" {
		errs = append(errs, field.Required(path.Child("certFile"), both))
	}
	if t.PrivateKeyFile == "" {
		errs = append(errs, field.Required(path.Child("privateKeyFile"), both))
	}
	return errs
}

func (s *Sidecar) validate(path *field.Path) (errs field.ErrorList) {
	for _, of := range []struct{ name, value string }{{"directory", s.Directory}, {"authorityDirectory", s.AuthorityDirectory}} {
		if !filepath.IsAbs(of.value) {
			errs = append(errs, field.Invalid(path.Child(of.name), of.value, "must be an absolute path"))
		}
	}
	published, authority := filepath.Clean(s.Directory)+"/", filepath.Clean(s.AuthorityDirectory)+"/"
	if strings.HasPrefix(published, authority) || strings.HasPrefix(authority, published) {
		errs = append(errs, field.Invalid(path.Child("authorityDirectory"), s.AuthorityDirectory, "must be apart from directory, because the other containers must not read the private key"))
	}
	return errs
}

func (g *GeneratedCertificate) validate(path *field.Path) (errs field.ErrorList) {
	errs = append(errs, validateText(path.Child("namespace"), g.Namespace, validation.IsDNS1123Label)...)
	errs = append(errs, validateText(path.Child("secretName"), g.SecretName, validation.IsDNS1123Subdomain)...)
	errs = append(errs, validateText(path.Child("configMapName"), g.ConfigMapName, validation.IsDNS1123Subdomain)...)
	if len(g.DNSNames) == 0 && len(g.IPAddresses) == 0 {
		errs = append(errs, field.Required(path.Child("dnsNames"), "name what clients call the proxy, or give ipAddresses"))
	}
	for n, name := range g.DNSNames {
		check := validation.IsDNS1123Subdomain
		if strings.HasPrefix(name, "*.") {
			check = validation.IsWildcardDNS1123Subdomain
		}
		errs = append(errs, validateText(path.Child("dnsNames").Index(n), name, check)...)
	}
	for n, address := range g.IPAddresses {
		if net.ParseIP(address) == nil {
			errs = append(errs, field.Invalid(path.Child("ipAddresses").Index(n), address, "must be an IP address"))
		}
	}
	return errs
}

func (u *Upstream) validate(path *field.Path) (errs field.ErrorList) {
	if len(u.Contexts) > 0 && (u.Context != "" || len(u.Servers) > 0) {
		errs = append(errs, field.Forbidden(path.Child("contexts"), "must not be used together with context or servers"))
	}
	if len(u.Contexts) > 0 && u.CAFile != "" {
		errs = append(errs, field.Forbidden(path.Child("caFile"), "must not be used together with contexts, each of which has its own CA"))
	}
	for i, name := range u.Contexts {
		at := path.Child("contexts").Index(i)
		if name == "" {
			errs = append(errs, field.Required(at, "the name of a context"))
		}
		if slices.Contains(u.Contexts[:i], name) {
			errs = append(errs, field.Duplicate(at, name))
		}
	}
	for i, address := range u.Servers {
		at := path.Child("servers").Index(i)
		if parsed, err := url.Parse(address); err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" ||
			parsed.RawQuery != "" || parsed.Fragment != "" || parsed.User != nil {
			errs = append(errs, field.Invalid(at, address, "must be a URL of a server: https://host:port"))
		}
		if slices.Contains(u.Servers[:i], address) {
			errs = append(errs, field.Duplicate(at, address))
		}
	}
	return errs
}

func (c *Cache) validate(path *field.Path) (errs field.ErrorList) {
	for i, name := range c.Exclude {
		errs = append(errs, validateResource(path.Child("exclude").Index(i), name)...)
	}
	for i, r := range c.Resources {
		at := path.Child("resources").Index(i)
		errs = append(errs, validateResource(at.Child("name"), r.Name)...)
		if slices.ContainsFunc(c.Resources[:i], func(before Resource) bool { return before.Name == r.Name }) {
			errs = append(errs, field.Duplicate(at.Child("name"), r.Name))
		}
		errs = append(errs, validateOneOf(at.Child("consistentReads"), r.ConsistentReads, FromCache, Forward)...)
		switch least := 10 * time.Millisecond; {
		case r.MaxAge.Duration != 0 && r.MaxAge.Duration < least:
			errs = append(errs, field.Invalid(at.Child("maxAge"), r.MaxAge.Duration.String(), "must be 0, or at least "+least.String()))
		case r.MaxAge.Duration > 0 && r.ConsistentReads == Forward:
			errs = append(errs, field.Invalid(at.Child("maxAge"), r.MaxAge.Duration.String(), "is of no use where consistentReads is forward"))
		}
	}
	errs = append(errs, validateScopes(path.Child("scopes"), c.Scopes)...)
	for i, s := range c.Scopes {
		for j, name := range s.Resources {
			if s.Warm && slices.Contains(c.Exclude, name) {
				errs = append(errs, field.Invalid(path.Child("scopes").Index(i).Child("resources").Index(j), name, "is excluded from caching, so its cache cannot be warm: name it in cache.resources and not in cache.exclude"))
			}
		}
	}
	probes := path.Child("consistentReads", "maxProbesPerSecond")
	errs = append(errs, validateNumber(probes, *c.ConsistentReads.MaxProbesPerSecond, 1)...)
	errs = append(errs, validateDuration(path.Child("syncTimeout"), c.SyncTimeout, 0)...)
	errs = append(errs, validateInterval(path.Child("idleTimeout"), c.IdleTimeout)...)
	errs = append(errs, validateInterval(path.Child("selfCheckInterval"), c.SelfCheckInterval)...)
	errs = append(errs, validateOneOf(path.Child("onUpstreamLoss"), c.OnUpstreamLoss, ServeStale, Fail)...)
	errs = append(errs, validateDuration(path.Child("maxStaleness"), c.MaxStaleness, 0)...)
	log := path.Child("log")
	errs = append(errs, validateDuration(log.Child("maxAge"), c.Log.MaxAge, time.Second)...)
	errs = append(errs, validateNumber(log.Child("maxEvents"), *c.Log.MaxEvents, 1)...)
	errs = append(errs, validateSize(log.Child("maxBytes"), c.Log.MaxBytes, leastBytes, math.MaxInt64)...)
	return append(errs, validateSize(path.Child("derived", "maxBytes"), c.Derived.MaxBytes, leastBytes, math.MaxInt64)...)
}

const (
	// resourcePattern matches a resource, optionally followed by a dot and its group.
	resourcePattern = `^[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// versionedPattern matches kubectl's resource.version.group. The version would be read as a
	// part of the group.
	versionedPattern = `^[^.]+\.v[0-9]+((alpha|beta)[0-9]+)?(\.|$)`
)

var (
	resourceName  = regexp.MustCompile(resourcePattern)
	versionedName = regexp.MustCompile(versionedPattern)
)

func validateResource(path *field.Path, name string) field.ErrorList {
	switch {
	case !resourceName.MatchString(name):
		return field.ErrorList{field.Invalid(path, name, "must be a plural resource name in lower case, with its group behind a dot unless it is "+
			"a core resource: pods, deployments.apps; there are no wildcards")}
	case versionedName.MatchString(name):
		return field.ErrorList{field.Invalid(path, name, "must not name a version, since it is about all of them: pods, deployments.apps")}
	}
	return nil
}

func validateOneOf[T ~string](path *field.Path, value T, known ...T) field.ErrorList {
	if !slices.Contains(known, value) {
		return field.ErrorList{field.NotSupported(path, value, known)}
	}
	return nil
}

func validateNumber(path *field.Path, n, atLeast int) field.ErrorList {
	if n < atLeast {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be at least %d", atLeast))}
	}
	return nil
}

// validateShare checks that a number, which may be NaN, is from 0 to atMost.
func validateShare(path *field.Path, n, atMost float64) field.ErrorList {
	if !(n >= 0 && n <= atMost) {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be from 0 to %v", atMost))}
	}
	return nil
}

// validateText returns an error for each problem that check finds.
func validateText(path *field.Path, value string, check func(string) []string) (errs field.ErrorList) {
	for _, problem := range check(value) {
		errs = append(errs, field.Invalid(path, value, problem))
	}
	return errs
}

// validateInterval checks the interval of a repeated action. 0 disables the action.
func validateInterval(path *field.Path, d *metav1.Duration) field.ErrorList {
	if d.Duration != 0 && d.Duration < time.Second {
		return field.ErrorList{field.Invalid(path, d.Duration.String(), "must be 0 or at least 1s")}
	}
	return nil
}

// validateSize checks that a number of bytes is between inclusive limits.
func validateSize(path *field.Path, q *resource.Quantity, atLeast, atMost int64) field.ErrorList {
	whole := q.Cmp(*resource.NewQuantity(q.Value(), resource.BinarySI)) == 0 // Value rounds up
	if v := q.Value(); whole && v >= atLeast && v <= atMost {
		return nil
	}
	bounds := "at least " + binary(atLeast)
	if atMost < math.MaxInt64 {
		bounds = "from " + binary(atLeast) + " to " + binary(atMost)
	}
	return field.ErrorList{field.Invalid(path, q.String(), "must be "+bounds+", in whole bytes")}
}

func binary(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }

func validateDuration(path *field.Path, d *metav1.Duration, atLeast time.Duration) field.ErrorList {
	if d.Duration < atLeast {
		return field.ErrorList{field.Invalid(path, d.Duration.String(), fmt.Sprintf("must be at least %s", atLeast))}
	}
	return nil
}

func validateAddress(path *field.Path, address string) field.ErrorList {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return field.ErrorList{field.Invalid(path, address, "must be host:port")}
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return field.ErrorList{field.Invalid(path, address, "has no such port")}
	}
	return nil
}
