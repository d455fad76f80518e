package discovery

import (
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type crd string

// RoundTrip implements http.RoundTripper.
func (c crd) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(c)))}, nil
}

// Of a definition, the requested version counts.
func TestDefine(t *testing.T) {
	const definition = `{"metadata":{"uid":"one","generation":7},"spec":{"conversion":{"strategy":"Webhook"},"versions":[
		{"name":"v1beta1","served":true,"selectableFields":[{"jsonPath":".spec.old"}]},
		{"name":"v1","served":true,"selectableFields":[{"jsonPath":".spec.color"},{"jsonPath":".spec.size"}],
			"additionalPrinterColumns":[{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]},
		{"name":"v2","served":false}]}}`
	version := Version{"one", 7}
	c := client.New(&url.URL{Scheme: "http", Host: "upstream"}, crd(definition), client.NewMetrics(prometheus.NewRegistry()))
	for name, want := range map[string]Definition{
		"v1beta1": {Version: version, served: true, converted: true, Selectable: []string{".spec.old"}},
		"v1": {
			Version: version, served: true, converted: true,
			Selectable: []string{".spec.color", ".spec.size"}, Columns: []string{".metadata.creationTimestamp"},
		},
		"v2": {Version: version, converted: true},
		"v3": {Version: version, converted: true},
	} {
		gvr := schema.GroupVersionResource{Group: "example.com", Version: name, Resource: "widgets"}
		if got, err := Define(t.Context(), c, gvr); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
}
