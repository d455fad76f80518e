package chart

import (
	"testing"

	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Releases, charts and namespaces may have names that YAML takes for numbers or booleans.
func TestNamesLikeNumbers(t *testing.T) {
	for name, values := range combinations(t) {
		if values["kind"] == "Sidecar" {
			continue
		}
		delete(values, "extraObjects") // the user writes them
		values["fullnameOverride"], values["nameOverride"] = "proxy", "007"
		install := newTemplate()
		install.ReleaseName, install.Namespace = "true", "2026"
		r, err := install.Run(loadChart(t), values)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all := parseObjects(t, r.(*releasev1.Release).Manifest)
		for _, h := range r.(*releasev1.Release).Hooks {
			all = append(all, parseObjects(t, h.Manifest)...)
		}
		for _, o := range all {
			for _, path := range [][]string{{"metadata", "labels"}, {"spec", "selector", "matchLabels"}, {"spec", "template", "metadata", "labels"}, {"spec", "podSelector", "matchLabels"}} {
				labels, _, err := unstructured.NestedStringMap(o.Object, path...)
				if of, ok := labels["app.kubernetes.io/instance"]; err != nil || ok && of != "true" {
					t.Errorf("%s: %s %s: %v, %v", name, o.GetKind(), o.GetName(), labels, err)
				}
			}
			if _, _, err := unstructured.NestedString(o.Object, "metadata", "namespace"); err != nil {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
			if _, _, err := unstructured.NestedStringSlice(o.Object, "spec", "namespaceSelector", "matchNames"); err != nil {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
			subjects, _, _ := unstructured.NestedSlice(o.Object, "subjects")
			for _, s := range subjects {
				if of, _ := s.(map[string]any)["namespace"].(string); of != "2026" {
					t.Errorf("%s: %s %s: subject %v", name, o.GetKind(), o.GetName(), s)
				}
			}
		}
	}
}
