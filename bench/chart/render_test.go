package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/config"
)

const (
	releaseName = "watchproxy"
	namespace   = "2026" // an unquoted one is a number in YAML
)

func chartDir() string { return filepath.Join(cluster.Root(), "charts", "watchproxy") }

// loadChart reads the chart from its files each time, because Helm changes the chart that it
// renders.
func loadChart(t *testing.T) *chartv2.Chart {
	t.Helper()
	c, err := loader.Load(chartDir())
	must(t, err)
	return c
}

func parseValues(t *testing.T, text string) (values map[string]any) {
	t.Helper()
	must(t, yaml.Unmarshal([]byte(text), &values))
	return values
}

func readYAML[T any](t *testing.T, file string) (into T) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, yaml.Unmarshal(text, &into))
	return into
}

// template does the same as `helm template`. A Sidecar is rendered in the chart of an application that
// depends on this chart.
func template(t *testing.T, install *action.Install, values map[string]any) (*releasev1.Release, error) {
	t.Helper()
	c := loadChart(t)
	if values["kind"] == "Sidecar" {
		application, err := loader.Load("testdata/application")
		must(t, err)
		application.AddDependency(c)
		values["enabled"] = true // the condition of the dependency
		c, values = application, map[string]any{"watchproxy": values}
	}
	r, err := install.Run(c, values)
	if err != nil {
		return nil, err
	}
	return r.(*releasev1.Release), nil
}

func newTemplate() *action.Install {
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy = action.DryRunClient
	install.ReleaseName, install.Namespace = releaseName, namespace
	install.KubeVersion = &common.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}
	return install
}

// render renders the chart, or fails the test.
func render(t *testing.T, values map[string]any) objects {
	t.Helper()
	r, err := template(t, newTemplate(), values)
	must(t, err)
	return parseObjects(t, r.Manifest)
}

// objects are the objects in a manifest.
type objects []*unstructured.Unstructured

func parseObjects(tb testing.TB, manifest string) (all objects) {
	tb.Helper()
	for document := range strings.SplitSeq("\n"+manifest, "\n---") {
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &o.Object); err != nil {
			tb.Fatalf("rendered: %v\n%s", err, document)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// one returns the only object of a kind, and fails the test if there is none.
func (all objects) one(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	found := all.of(kind)
	if len(found) != 1 {
		t.Fatalf("there are %d objects of kind %s", len(found), kind)
	}
	return found[0]
}

func (all objects) of(kinds ...string) (found objects) {
	for _, o := range all {
		for _, kind := range kinds {
			if o.GetKind() == kind {
				found = append(found, o)
			}
		}
	}
	return found
}

// as decodes an object strictly: an unknown field is an error.
func as[T any](t *testing.T, o *unstructured.Unstructured) (into T) {
	t.Helper()
	text, err := yaml.Marshal(o.Object)
	must(t, err)
	if err := yaml.UnmarshalStrict(text, &into); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return into
}

// configuration returns the rendered configuration, as the proxy loads it.
func configuration(t *testing.T, all objects) *config.ProxyConfiguration {
	t.Helper()
	c, err := load(configText(t, all))
	must(t, err)
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

// load loads a configuration as the proxy does.
func load(text string) (*config.ProxyConfiguration, error) {
	c, _, err := config.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	c.SetDefaults()
	return c, c.Validate()
}
