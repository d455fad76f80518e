//go:build verify

package faults

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// newConverter starts a conversion webhook, which converts by the name of the version unless it is
// down.
func newConverter(t *testing.T, down *atomic.Bool) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Request    struct {
				UID     string           `json:"uid"`
				Desired string           `json:"desiredAPIVersion"`
				Objects []map[string]any `json:"objects"`
			} `json:"request"`
		}
		if down.Load() || json.NewDecoder(r.Body).Decode(&review) != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for _, o := range review.Request.Objects {
			o["apiVersion"] = review.Request.Desired
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{ // the apiserver may be gone
			"apiVersion": review.APIVersion, "kind": review.Kind,
			"response": map[string]any{"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"}},
		})
	}))
	t.Cleanup(s.Close)
	return s
}

// A custom resource has a version that the apiserver cannot convert any more, because the webhook
// is down. Its reads get the apiserver's own status, at most a second and a half later than
// directly. That is so before the cache is filled and after it. A filled cache may answer instead.
// Package proxy tests reads of an upstream that is silent.
func TestConversionFails(t *testing.T) {
	for _, filled := range []bool{false, true} {
		t.Run(fmt.Sprintf("filled %t", filled), func(t *testing.T) { conversionFails(t, filled) })
	}
}

func conversionFails(t *testing.T, filled bool) {
	t.Helper()
	const slack = 1500*time.Millisecond + 200*time.Millisecond // for the machine
	var down atomic.Bool
	webhook := newConverter(t, &down)
	api := cluster.APIServerT(t, cluster.Options{})
	namespace := api.NamespaceT(t, "convert")
	of := schema.GroupVersionResource{Group: "stuck.test", Version: "v1", Resource: "gears"}
	create := func(name string) error {
		_, err := api.Dynamic().Resource(of).Namespace(namespace).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "stuck.test/v1", "kind": "Gear", "metadata": map[string]any{"name": name}, "spec": map[string]any{"n": "1"},
		}}, metav1.CreateOptions{})
		return err
	}
	content := map[string]any{"spec": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	err := api.Define(t.Context(), of, "Gear", content, nil)
	cluster.MustT(t, err)
	schemas := map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": content}}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"versions": []any{
			map[string]any{"name": "v1", "served": true, "storage": true, "schema": schemas},
			map[string]any{"name": "v2", "served": true, "storage": false, "schema": schemas},
		},
		"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"clientConfig": map[string]any{
				"url":      webhook.URL + "/convert",
				"caBundle": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}),
			},
			"conversionReviewVersions": []any{"v1"},
		}},
	}})
	if err == nil {
		_, err = api.Dynamic().Resource(cluster.Definitions).Patch(t.Context(), "gears.stuck.test", types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err == nil {
		err = create("a")
	}
	cluster.MustT(t, err)
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig})
	direct, proxied := api.EndpointT(t), proxy.EndpointT(t)
	path := "/apis/stuck.test/v2/namespaces/" + namespace + "/gears"
	cluster.Eventually(t, "the version is served", func() bool { return direct.GetT(t, path+"/a", nil).Status == http.StatusOK })
	if filled {
		cluster.Eventually(t, "the cache is filled", func() bool {
			return proxied.GetT(t, path, nil).Status == http.StatusOK && proxy.MetricsT(t).Sum("watchproxy_feed_objects", cluster.Label("resource", "gears")) == 1
		})
	}
	down.Store(true)
	// The apiserver's own cache of v2 cannot follow this write.
	cluster.MustT(t, create("b"))
	for round := range 2 {
		for _, query := range []string{"", "?resourceVersion=0", "/a", "?watch=true&timeoutSeconds=1", "?watch=true&resourceVersion=0&timeoutSeconds=1"} {
			ask := func(e *cluster.Endpoint) (a cluster.Answer, reason metav1.StatusReason, took time.Duration) {
				began := time.Now()
				a = e.GetT(t, path+query, nil)
				var status metav1.Status
				_ = json.Unmarshal(a.Body, &status) // otherwise the reason is empty
				return a, status.Reason, time.Since(began)
			}
			want, reason, directly := ask(direct)
			got, said, took := ask(proxied)
			// A filled cache needs no conversion. If its proof gets no answer, upstream counts as
			// lost, and the read is refused sooner than directly.
			cached := filled && (got.Status == http.StatusOK || got.Status == http.StatusServiceUnavailable && took < directly)
			if !cached && got.Status != want.Status { // the first request waits longer than the next ones
				want, reason, _ = ask(direct)
			}
			if !cached && (got.Status != want.Status || said != reason) {
				t.Errorf("%s: %d %s\ndirectly: %d %s", query, got.Status, got.Body, want.Status, want.Body)
			}
			// The first proof that fails is not known to fail.
			unknown := filled && round == 0 && query == ""
			if !unknown && took > directly+slack {
				t.Errorf("%s: a response after %v, directly after %v", query, took, directly)
			}
		}
	}
}
