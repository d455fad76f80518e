package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	releaseName = "watchproxy"
	namespace   = "proxies"
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

// parseValues parses the text of a values file.
func parseValues(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		t.Fatalf("values: %v\n%s", err, text)
	}
	return values
}

// combinations returns the values in testdata/values, in the chart's further files and in its
// README, by name.
func combinations(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values: %v", err)
	}
	all := map[string]map[string]any{}
	for _, file := range append(files, filepath.Join(chartDir(), "values-sidecar.yaml"), filepath.Join(chartDir(), "values-node.yaml")) {
		text, err := os.ReadFile(file)
		must(t, err)
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = parseValues(t, string(text))
	}
	readme, err := os.ReadFile(filepath.Join(chartDir(), "README.md"))
	must(t, err)
	_, text, ok := strings.Cut(string(readme), "\n```yaml\n")
	if text, _, _ = strings.Cut(text, "\n```"); !ok || !strings.Contains(text, "audit:") {
		t.Fatal("the README has no values for an audit log")
	}
	all["audit"] = parseValues(t, text)
	return all
}

// template does the same as `helm template`.
func template(c *chartv2.Chart, values map[string]any) (*releasev1.Release, error) {
	r, err := newTemplate().Run(c, values)
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
	r, err := template(loadChart(t), values)
	must(t, err)
	return parseObjects(t, r.Manifest)
}

// objects are the objects in a manifest.
type objects []*unstructured.Unstructured

func parseObjects(tb testing.TB, manifest string) (all objects) {
	tb.Helper()
	documents := yamlreader.NewDocumentDecoder(io.NopCloser(strings.NewReader(manifest)))
	buf := make([]byte, 1<<20)
	for {
		n, err := documents.Read(buf)
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			tb.Fatal(err)
		}
		document := bytes.Clone(buf[:n])
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &o.Object); err != nil {
			tb.Fatalf("rendered: %v\n%s", err, document)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
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
