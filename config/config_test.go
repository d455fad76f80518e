package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func load(t *testing.T, text string) (*ProxyConfiguration, error) {
	t.Helper()
	c, _, err := Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	c.SetDefaults()
	return c, c.Validate()
}

// refusedFor checks that an error contains a text, in one line. If the text is empty, there must be
// no error.
func refusedFor(t *testing.T, text string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
		t.Errorf("%q: got %v, want %q", text, err, want)
	}
}

const head = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"

func TestResourcesKeepWhatTheySay(t *testing.T) {
	c, err := load(t, head+"cache: {resources: [{name: leases.coordination.k8s.io, consistentReads: forward}, {name: pods, aggregated: true, maxAge: 2s}]}\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Resource{
		{"leases.coordination.k8s.io", Forward, metav1.Duration{}, false},
		{"pods", FromCache, metav1.Duration{Duration: 2 * time.Second}, true},
		{"events", Forward, metav1.Duration{}, false},
		{"events.events.k8s.io", Forward, metav1.Duration{}, false}, // other events keep their default
	}
	if !slices.Equal(c.Cache.Resources, want) {
		t.Errorf("%+v, want %+v", c.Cache.Resources, want)
	}
}

// Without authentication, other machines must not reach the listener. Credentials are sent only
// over TLS.
func TestListenAndAuthentication(t *testing.T) {
	const pair = "tls: {certFile: a, privateKeyFile: b}\n"
	for text, want := range map[string]string{
		"":                           "",
		"listen: 127.0.0.1:0":        "",
		"listen: '[::1]:0'":          "",
		"listen: localhost:0":        "",
		"listen: unix:///run/w.sock": "Unix sockets are gone",
		"listen: 0.0.0.0:1":          "tls:",
		"listen: ':1'":               "tls:",
		"listen: example.org:1":      "tls:",
		pair + "listen: 0.0.0.0:1":   "",
		pair + "listen: 0.0.0.0:1\nauthentication: {mode: none}": "authentication.mode:",
		pair + "authentication: {mode: delegated}":               "",
		"authentication: {mode: delegated}":                      "tls:",
		"authentication: {mode: basic}":                          "authentication.mode:",
		"authentication: {anonymous: {enabled: true}}":           "authentication.anonymous.enabled:",
		"authentication: {x509: {clientCAFile: ca.crt}}":         "authentication.x509.clientCAFile:",
		"upstream: {caFile: ca.crt, contexts: [a, b]}":           "upstream.caFile:",
		"upstream: {caFile: ca.crt, servers: ['https://a']}":     "",
	} {
		_, err := load(t, head+text+"\n")
		refusedFor(t, text, err, want)
	}
}

// Secrets are cached only if the configuration names them.
func TestSecretsAreNamed(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                      {"secrets"},
		"cache: {exclude: []}":                  {"secrets"},
		"cache: {exclude: [pods]}":              {"pods", "secrets"},
		"cache: {exclude: [secrets, pods]}":     {"secrets", "pods"},
		"cache: {resources: [{name: pods}]}":    {"secrets"},
		"cache: {resources: [{name: secrets}]}": nil,
		"cache: {exclude: [secrets], resources: [{name: secrets}]}": {"secrets"},
	} {
		c, err := load(t, head+text+"\n")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(c.Cache.Exclude, want) {
			t.Errorf("%q excludes %q, want %q", text, c.Cache.Exclude, want)
		}
	}
}

// Values that the user probably meant differently are refused.
func TestNamesOfResources(t *testing.T) {
	for name, valid := range map[string]bool{
		"pods": true, "deployments.apps": true, "leases.coordination.k8s.io": true, "c-1.example.org": true, "versions.vault.example.org": true,
		"*": false, "*.apps": false, "pods.": false, ".apps": false, "pods..apps": false, "pods/log": false, "Pods": false, "1pods": false,
		"pods.v1": false, "cronjobs.v1beta1": false, "deployments.v1.apps": false, "a.v2alpha1.example.org": false, "pods-": false, "": false, "pods\n": false,
	} {
		for _, in := range []string{"cache: {exclude: [%q]}\n", "cache: {resources: [{name: %q}]}\n"} {
			if _, err := load(t, head+fmt.Sprintf(in, name)); (err == nil) != valid {
				t.Errorf(in+" valid: %t, got %v", name, valid, err)
			}
		}
	}
}

// Intervals are long enough to keep the processor mostly idle. Sizes are whole bytes and large
// enough.
func TestLeastValues(t *testing.T) {
	for text, want := range map[string]string{
		"cache: {selfCheckInterval: 1ms}":           "cache.selfCheckInterval: ",
		"cache: {selfCheckInterval: 0s}":            "",
		"cache: {selfCheckInterval: 1s}":            "",
		"goawayChance: 0.03":                        `must be from 0 to 0.02`,
		"authorization: {watchRecheckInterval: 0s}": "",
		"cache: {log: {maxBytes: 500m}}":            "cache.log.maxBytes: ",
		"cache: {log: {maxBytes: 256}}":             "cache.log.maxBytes: ",
		"cache: {log: {maxBytes: 1048576.5}}":       "cache.log.maxBytes: ",
		"cache: {log: {maxBytes: 1048577000m}}":     "",
		"cache: {log: {maxBytes: 1.5Gi}}":           "",
		"cache: {log: {maxBytes: 10000E}}":          "cache.log.maxBytes: ",
		"cache: {log: {maxBytes: -1Gi}}":            `must be at least 1Mi, in whole bytes`,
		"memoryBudget: 500m":                        "memoryBudget: ",
		"memoryBudget: 0":                           "",
	} {
		_, err := load(t, head+text+"\n")
		refusedFor(t, text, err, want)
	}
}

// The admin address reviews requests unless it is a loopback address. Only known paths that change
// nothing can be open.
func TestAdminAuthentication(t *testing.T) {
	const pair, mode, none = "tls: {certFile: a, privateKeyFile: b}\n", "adminAuthentication: {mode: delegated}\n", "adminAuthentication: {mode: none}\n"
	for text, want := range map[string]struct {
		mode    AuthenticationMode
		reviews bool
	}{
		"":                                      {NoAuthentication, false},
		pair:                                    {NoAuthentication, false},
		pair + "adminListen: ':8002'\n":         {Delegated, true},
		"tls: {sidecar: {}}\nadminListen: ':1'": {Delegated, false},
		pair + "adminListen: 10.0.0.1:1":        {Delegated, true},
		pair + "adminListen: localhost:1":       {NoAuthentication, false},
		pair + mode:                             {Delegated, false},
		pair + none + "adminListen: ':1'":       {NoAuthentication, false},
	} {
		c, err := load(t, head+text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if c.AdminAuthentication.Mode != want.mode || c.AdminReviews() != want.reviews || !slices.Equal(c.AdminAuthentication.AlwaysAllowPaths, []string{"/livez", "/readyz"}) {
			t.Errorf("%q: %+v, reviews: %v", text, c.AdminAuthentication, c.AdminReviews())
		}
	}
	const first, second = "adminAuthentication.alwaysAllowPaths[0]: ", "adminAuthentication.alwaysAllowPaths[1]: "
	for text, want := range map[string]string{
		"alwaysAllowPaths: [/livez, /readyz, /metrics, /status, /]": "", "alwaysAllowPaths: []": "",
		"alwaysAllowPaths: [/livez/]": first, "alwaysAllowPaths: [metrics]": first, "alwaysAllowPaths: [/livez, /debug/pprof/]": second,
		"alwaysAllowPaths: ['*']": first, "alwaysAllowPaths: ['']": first, "mode: basic": "adminAuthentication.mode: ",
	} {
		_, err := load(t, head+"adminAuthentication: {"+text+"}\n")
		refusedFor(t, text, err, want)
	}
}
