package clients

import (
	"io"
	"net/http"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A resource with a maxAge is read as it was up to so long ago, and the answer says so. Others are not.
func TestMaxAge(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	p := w.freshProxy(t, "--config", file(t, header+"cache: {resources: [{name: configmaps, maxAge: 10m}]}\n"))
	ns := w.namespace(t, "maxage")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if _, err := w.admin.CoreV1().ConfigMaps(ns).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	collection := "/api/v1/namespaces/" + ns + "/configmaps"
	if age := ageOf(t, p, collection); age != "" {
		t.Errorf("the first read, which nothing was known before, is of %s seconds ago", age)
	}
	for _, path := range []string{collection, collection + "?limit=1", collection + "/a"} {
		if seconds, err := strconv.Atoi(ageOf(t, p, path)); err != nil || seconds < 1 || seconds > 600 {
			t.Errorf("%s has an age of %d seconds: %v", path, seconds, err)
		}
	}
	for _, path := range []string{collection + "?resourceVersion=0", "/api/v1/namespaces/" + ns + "/serviceaccounts", "/api/v1/namespaces/" + ns + "/serviceaccounts"} {
		if age := ageOf(t, p, path); age != "" {
			t.Errorf("%s has an age of %s seconds", path, age)
		}
	}
}

// ageOf is the Age header of an answer.
func ageOf(t *testing.T, p *cluster.Proxy, path string) string {
	t.Helper()
	resp, err := http.Get(p.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v: %s", path, resp.Status, err, body)
	}
	return resp.Header.Get("Age")
}
