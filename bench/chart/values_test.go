package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// row is a row of testdata/values.yaml: values, and what they render. Keys that are not in notKinds
// are kinds: an object of the kind has the given fields. If the fields are null, there is no object.
type row map[string]any

var notKinds = []string{
	"values",
	"release",     // the release's name
	"apiVersions", // what else the cluster serves
	"config",      // fields of the configuration
	"notes",       // parts of the notes
}

// Each value has its effect. The proxy accepts all configurations, and the apiserver all objects.
func TestValues(t *testing.T) {
	w := sharedWorld(t)
	set := map[string]bool{}
	for _, r := range rows(t) {
		name, err := json.Marshal(r["values"])
		must(t, err)
		leaves("", r["values"], set)
		t.Run(string(name), func(t *testing.T) { w.renders(t, r) })
	}
	for _, v := range documented(t) {
		if !set[v.path] {
			t.Errorf("no row of testdata/values.yaml sets %s", v.path)
		}
	}
}

func rows(t *testing.T) (all []row) {
	t.Helper()
	text, err := os.ReadFile("testdata/values.yaml")
	must(t, err)
	text = bytes.ReplaceAll(text, []byte("APPVERSION"), []byte(loadChart(t).AppVersion()))
	must(t, yaml.Unmarshal(text, &all))
	return all
}

// leaves adds the paths of all values.
func leaves(path string, value any, to map[string]bool) {
	to[strings.TrimPrefix(path, ".")] = true
	below, _ := value.(map[string]any)
	for name, value := range below {
		leaves(path+"."+name, value, to)
	}
}

func (w *world) renders(t *testing.T, r row) {
	t.Helper()
	install := newTemplate()
	if name, ok := r["release"].(string); ok {
		install.ReleaseName = name
	}
	if versions, ok := r["apiVersions"].([]any); ok {
		install.APIVersions = common.VersionSet{versions[0].(string)}
	}
	release, err := template(t, install, r["values"].(map[string]any))
	must(t, err)
	all := parseObjects(t, release.Manifest)
	for _, h := range release.Hooks {
		all = append(all, parseObjects(t, h.Manifest)...)
	}
	configuration(t, all)
	for kind, want := range r {
		if slices.Contains(notKinds, kind) {
			continue
		}
		if problem := none(kind, want, all.of(kind)); problem != "" {
			t.Error(problem)
		}
	}
	if want, ok := r["config"]; ok {
		if problem := differs("config", want, any(parseValues(t, configText(t, all)))); problem != "" {
			t.Error(problem)
		}
	}
	if notes, ok := r["notes"].(string); ok {
		if problem := lacks("notes", notes, release.Info.Notes); problem != "" {
			t.Error(problem)
		}
	}
	if _, extra := r["values"].(map[string]any)["extraObjects"]; !extra {
		for _, o := range all {
			w.belongs(t, o)
		}
	}
	w.accepts(t, all)
}

// belongs fails the test unless an object names the chart, the release and its namespace, also for
// those who apply what Helm renders.
func (w *world) belongs(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	if o.GetName() == "application" { // which embeds the chart
		return
	}
	for _, label := range []string{"name", "instance", "version", "managed-by"} {
		if o.GetLabels()["app.kubernetes.io/"+label] == "" {
			t.Errorf("%s %s has no %s", o.GetKind(), o.GetName(), label)
		}
	}
	mapping, err := w.mapping.RESTMapping(o.GroupVersionKind().GroupKind())
	must(t, err)
	if namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace; namespaced != (o.GetNamespace() != "") {
		t.Errorf("%s %s is in the namespace %q", o.GetKind(), o.GetName(), o.GetNamespace())
	}
}

// none returns why no object has the wanted fields, or "".
func none(kind string, want any, found objects) (problem string) {
	if want == nil {
		if len(found) > 0 {
			problem = fmt.Sprintf("there is the %s %s", kind, found[0].GetName())
		}
		return problem
	}
	problem = "there is no " + kind
	for _, o := range found {
		if problem = differs(kind+" "+o.GetName(), want, any(o.Object)); problem == "" {
			return ""
		}
	}
	return problem
}

// differs returns what got has not, or "". An object may have more fields. A list may not have more
// items. A text stands for parts of the JSON of an object or a list.
func differs(path string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		in, _ := got.(map[string]any)
		for name, value := range want {
			if problem := differs(path+"."+name, value, in[name]); problem != "" {
				return problem
			}
		}
		return ""
	case []any:
		in, _ := got.([]any)
		if len(in) != len(want) {
			break
		}
		for i, value := range want {
			if problem := differs(fmt.Sprintf("%s[%d]", path, i), value, in[i]); problem != "" {
				return problem
			}
		}
		return ""
	case string:
		if _, ok := got.(string); ok || got == nil {
			break
		}
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(got) // it was JSON
		return lacks(path, want, text.String())
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Sprintf("%s is %v, want %v", path, got, want)
	}
	return ""
}

// lacks returns which line of want is not in a text, or "". Lines that begin with ! must not be there.
func lacks(path, want, text string) string {
	for part := range strings.SplitSeq(want, "\n") {
		wrong, not := strings.CutPrefix(part, "!")
		if strings.Contains(text, wrong) == not {
			return fmt.Sprintf("%s: %q: there is\n%s", path, part, text)
		}
	}
	return ""
}

// accepts shows the apiserver all objects, and the pods of their templates, by strict dry runs.
func (w *world) accepts(t *testing.T, all objects) {
	t.Helper()
	for _, o := range all.of("Deployment", "DaemonSet") {
		template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
		must(t, err)
		pod := &unstructured.Unstructured{Object: maps.Clone(template)}
		pod.SetAPIVersion("v1")
		pod.SetKind("Pod")
		pod.SetName("of-" + o.GetName())
		if o.GetKind() == "DaemonSet" {
			pod.SetNamespace(metav1.NamespaceSystem) // which allows ports of the node
		}
		all = append(all, pod)
	}
	for _, o := range all {
		text, err := o.MarshalJSON()
		must(t, err)
		if w.accepted[string(text)] {
			continue
		}
		w.accepted[string(text)] = true
		if err := w.apply(t.Context(), o, metav1.DryRunAll); err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// The chart refuses wrong values by a message that names them.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	for part, values := range readYAML[map[string]map[string]any](t, "testdata/refused.yaml") {
		if _, err := template(t, newTemplate(), values); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: got %v, want %s", values, err, part)
		}
	}
}
