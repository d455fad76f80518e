//go:build verify

package chart

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// `helm test` fails if the proxy's certificate is not of the published CA.
func TestHelmTestOfAnotherCA(t *testing.T) {
	r, _, k := newHelmTest(t, "foreignca")
	var name string
	all, err := r.w.admin.CoreV1().ConfigMaps(r.ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, published := range all.Items {
		if _, ok := published.Data["ca.crt"]; ok {
			name = published.Name
			published.Data["ca.crt"] = string(r.w.api.CA)
			_, err := r.w.admin.CoreV1().ConfigMaps(r.ns).Update(t.Context(), &published, metav1.UpdateOptions{})
			must(t, err)
		}
	}
	if name == "" {
		t.Fatal("no CA is published")
	}
	k.arguments = []string{"--timeout=10s"} // it tries again until then
	if err := r.test(t, k); err == nil || !strings.Contains(k.output, "certificate signed by unknown authority") {
		t.Errorf("a certificate of another CA is accepted: %v\n%s", err, k.output)
	}
	// A failed pod stays, so that its log can be read.
	must(t, r.w.admin.CoreV1().Pods(r.ns).DeleteCollection(t.Context(), *metav1.NewDeleteOptions(0), metav1.ListOptions{}))
	r.uninstall(t)
}
