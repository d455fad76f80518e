//go:build verify

package faults

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// An apiserver is upgraded: it emulates the previous version, and then does not. Its lists in every
// encoding come from the caches as upstream writes them now. Where the two versions write the same
// bytes, watches go on.
func TestUpgrade(t *testing.T) {
	const before, after = "--emulated-version=1.36", "--emulated-version=1.37"
	api := cluster.APIServerT(t, cluster.Options{Flags: []string{before}})
	namespace := api.NamespaceT(t, cluster.UniqueName("upgrade"))
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	client := api.Client()
	selector := &metav1.LabelSelector{MatchLabels: pod.Labels}
	_, err := client.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pod},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: pod},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: pod.Spec}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	}
	cluster.MustT(t, err)
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig})
	direct, proxied := api.EndpointT(t), proxy.EndpointT(t)

	type list struct{ path, accept string }
	var lists []list
	for _, path := range []string{
		"/api/v1/pods", "/api/v1/configmaps", "/api/v1/namespaces", "/api/v1/services",
		"/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
		"/apis/apiregistration.k8s.io/v1/apiservices",
	} {
		// Not as Tables, whose ages change by themselves.
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
			lists = append(lists, list{path, accept})
		}
	}
	read := func(e *cluster.Endpoint, l list) cluster.Answer {
		return e.GetT(t, l.path+"?resourceVersion=0", http.Header{"Accept": {l.accept}})
	}
	for _, l := range lists {
		if got := read(proxied, l); got.Status != http.StatusOK {
			t.Fatalf("%v: %d", l, got.Status)
		}
	}
	watch, err := proxied.Watch(t.Context(), cluster.Get("/api/v1/namespaces/"+namespace+"/configmaps?watch=true&resourceVersion=0"))
	cluster.MustT(t, err)
	defer watch.Body.Close()

	version := direct.GetT(t, "/version", nil).Body
	cluster.MustT(t, api.Stop())
	api.Reconfigure(after)
	cluster.MustT(t, api.Start(t.Context()))
	if now := direct.GetT(t, "/version", nil).Body; bytes.Equal(now, version) {
		t.Fatalf("the apiserver has the same version: %s", now)
	}
	for _, l := range lists {
		cluster.Eventually(t, fmt.Sprintf("%v is as upstream writes it", l), func() bool {
			return bytes.Equal(read(proxied, l).Body, read(direct, l).Body)
		})
	}
	for _, kind := range []string{"configmaps", "pods"} {
		cluster.Eventually(t, "the feed of "+kind+" has compared its state", func() bool {
			return proxy.MetricsT(t).Sum("watchproxy_feed_relists_total", cluster.Label("resource", kind)) > 0
		})
	}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "y"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var seen []byte
	for buffer := make([]byte, 64<<10); !strings.Contains(string(seen), `"name":"y"`); {
		n, err := watch.Body.Read(buffer)
		seen = append(seen, buffer[:n]...)
		if err != nil {
			t.Fatalf("the watch ended after %s: %v", seen, err)
		}
	}
}
