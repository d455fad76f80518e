package chart

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/config"
)

// For every field, Helm refuses the same durations, quantities and numbers as the proxy.
func TestBoundsAreTheProxys(t *testing.T) {
	t.Parallel()
	candidates := map[reflect.Type][]any{
		reflect.TypeFor[metav1.Duration](): {"0", "10ms", "0.5s", "999ms", "1s", "1500ms", "0.5m", "1h0m0s", "999999h", "9999999h"},
		reflect.TypeFor[resource.Quantity](): {
			0, 1, "1m", "1023", "1Ki", 4095, "4Ki", "1Mi", 1<<20 + 1, "67108863", "64Mi", "0.5Gi", "1Gi",
			"1073741825", "2G", "8E",
		},
		reflect.TypeFor[int]():   {-1, 0, 1, 1_000_000, 1 << 40},
		reflect.TypeFor[int32](): {-1, 0, 1, 1_000_000, 1_000_001, 1 << 40},
	}
	tried := 0
	for path, of := range leaves("", reflect.TypeFor[config.ProxyConfiguration]()) {
		if candidates[of] == nil && reflect.Int <= of.Kind() && of.Kind() <= reflect.Uint64 {
			t.Errorf("no values for %s of type %v", path, of)
		}
		for _, value := range candidates[of] {
			c := nested(path, value)
			refused := refusal(t, c)
			r, err := template(loadChart(t), map[string]any{
				"tls": map[string]any{"mode": "certManager"}, "resources": map[string]any{"limits": map[string]any{"memory": nil}}, "config": c,
			})
			if of.Kind() == reflect.Int && value == 1<<40 {
				refused = err // so many connections are impossible, so the chart may refuse them
			}
			if (err == nil) != (refused == nil) {
				t.Errorf("%s: %v: helm says %v, and the proxy %v", path, value, err, refused)
			} else if err == nil {
				configuration(t, parseObjects(t, r.Manifest))
			}
			tried++
		}
	}
	const least = 100
	if tried < least {
		t.Errorf("only %d values were tried", tried)
	}
}

// The proxy accepts every configuration that Helm accepts.
func TestWhatRendersIsTaken(t *testing.T) {
	t.Parallel()
	for _, values := range []string{
		`{config: {tls: {generated: {namespace: a, secretName: b, configMapName: c, dnsNames: [d]}}}, tls: {mode: none}}`,
		`{config: {tls: {generated: {namespace: a, secretName: b, configMapName: c}}}, tls: {mode: none}}`,
		`{config: {tls: {certFile: /a, privateKeyFile: /b, generated: {namespace: a, secretName: b, configMapName: c, dnsNames: [d]}}}, tls: {mode: none}}`,
		`{tls: {dnsNames: ["*.example.com"], ipAddresses: ["::1"]}}`,
		`{tls: {dnsNames: ["a b"]}}`,
		`{tls: {ipAddresses: ["a"]}}`,
		`{config: {authentication: {mode: none}}}`,
		`{config: {authentication: {mode: delegated}}}`,
		`{config: {authentication: {x509: {clientCAFile: /ca.crt}}}}`,
		`{config: {upstream: {contexts: [a], servers: ["https://a"]}}}`,
		`{config: {upstream: {contexts: [a], context: a}}}`,
		`{config: {upstream: {contexts: [], servers: ["https://a"]}}}`,
		`{config: {upstream: {contexts: [a, a]}}}`,
		`{config: {upstream: {servers: ["https://a:443", "https://a:443"]}}}`,
		`{config: {upstream: {servers: ["https://a b"]}}}`,
		`{config: {upstream: {servers: ["https://a:b"]}}}`,
		`{config: {upstream: {servers: ["https://[::1]:6443", "https://apiserver.example.com/a/b"]}}}`,
		`{config: {upstream: {servers: ["https://a/%zz"]}}}`,
		`{config: {adminListen: ":6443"}}`,
		`{config: {adminListen: "0.0.0.0:6443"}}`,
		`{config: {adminListen: ":99999"}}`,
		`{config: {listen: ":99999"}}`,
		`{config: {listen: "a b:6443"}}`,
		`{config: {listen: "[::]:6443"}}`,
		`{config: {listen: "` + strings.Repeat("a", 200) + `:6443"}}`,
		`{config: {cache: {resources: [{name: pods}, {name: pods}]}}}`,
		`{config: {cache: {resources: [{name: pods}, {name: pods, consistentReads: forward}]}}}`,
		`{config: {cache: {exclude: [pods, pods]}}}`,
		`{config: {cache: {exclude: [pods.v1]}}}`,
		`{config: {cache: {exclude: [deployments.v1beta1.apps]}}}`,
		`{config: {cache: {exclude: [pods-]}}}`,
		`{config: {cache: {exclude: [pods.]}}}`,
		`{config: {cache: {resources: [{name: "-"}]}}}`,
		`{config: {accessLogSampling: 0.5, goawayChance: 0.02, logFormat: console}}`,
		sidecarWith(``),
		sidecarWith(`config: {listen: ":6443"}`),
		sidecarWith(`config: {listen: "127.0.0.1:8001", authentication: {mode: delegated}}`),
		sidecarWith(`config: {listen: "127.0.0.1:8001", authentication: {anonymous: {enabled: true}}}`),
		sidecarWith(`config: {listen: "127.0.0.1:8001", authentication: {x509: {clientCAFile: /ca.crt}}}`),
		sidecarWith(`config: {listen: "unix:///run/a", authentication: {mode: delegated, anonymous: {enabled: true}}}`),
		sidecarWith(`config: {listen: "unix:///` + strings.Repeat("a", 107) + `"}`),
		sidecarWith(`config: {listen: "unix:///` + strings.Repeat("a", 106) + `"}`),
		sidecarWith(`config: {listen: "127.1:8001"}`),
	} {
		r, err := template(loadChart(t), parseValues(t, values))
		if err != nil {
			continue
		}
		if _, err := load(t, configText(t, parseObjects(t, r.Manifest))); err != nil {
			t.Errorf("%s: helm installs it, and the proxy refuses it: %v", values, err)
		}
	}
}

// leaves returns the fields of a configuration that are not structs, by path.
func leaves(path string, of reflect.Type) map[string]reflect.Type {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[metav1.Duration]() || of == reflect.TypeFor[resource.Quantity]() {
		return map[string]reflect.Type{path: of}
	}
	all := map[string]reflect.Type{}
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		for at, leaf := range leaves(strings.TrimPrefix(path+"."+name, "."), f.Type) {
			all[at] = leaf
		}
	}
	return all
}

// nested returns an object that has a value at a path.
func nested(path string, value any) map[string]any {
	name, rest, more := strings.Cut(path, ".")
	if more {
		value = nested(rest, value)
	}
	return map[string]any{name: value}
}

// refusal returns the proxy's error for a configuration.
func refusal(t *testing.T, c map[string]any) error {
	t.Helper()
	all := map[string]any{"apiVersion": config.APIVersion, "kind": config.Kind}
	for name, value := range c {
		all[name] = value
	}
	text, err := json.Marshal(all)
	must(t, err)
	_, err = load(t, string(text))
	return err
}

// load loads a configuration as the proxy does.
func load(t *testing.T, text string) (*config.ProxyConfiguration, error) {
	t.Helper()
	c, _, err := config.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	c.SetDefaults()
	return c, c.Validate()
}

// configuration returns the rendered configuration, as the proxy loads it.
func configuration(t *testing.T, all objects) *config.ProxyConfiguration {
	t.Helper()
	text := configText(t, all)
	c, err := load(t, text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c
}

func configText(t *testing.T, all objects) string {
	t.Helper()
	for _, o := range all.of("ConfigMap") {
		if text, ok := as[corev1.ConfigMap](t, o).Data["config.yaml"]; ok {
			return text
		}
	}
	t.Fatal("no ConfigMap has a config.yaml")
	return ""
}
