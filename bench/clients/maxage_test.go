package clients

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// For a resource with a maxAge, answers may be out of date by up to this time and have an Age
// header. For other resources, answers have no such header.
func TestMaxAge(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	p := w.FreshProxy(t, "cache: {resources: [{name: configmaps, maxAge: 10m}]}\n")
	ns := w.Namespace(t, "maxage")
	w.CreateConfigMap(t, ns, "a", "", "")
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

// ageOf returns the Age header of an answer.
func ageOf(t *testing.T, p *cluster.Proxy, path string) string {
	t.Helper()
	got := p.EndpointT(t).GetT(t, path, nil)
	if got.Status != http.StatusOK {
		t.Fatalf("%s: %d: %s", path, got.Status, got.Body)
	}
	return got.Header.Get("Age")
}
