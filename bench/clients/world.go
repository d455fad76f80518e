package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Main is the TestMain of packages whose proxies are built with the race detector.
func Main(m *testing.M, setUp ...func(testing.TB)) {
	if err := os.Setenv("WATCHPROXY_RACE", "1"); err != nil {
		panic(err)
	}
	cluster.Main(m, setUp...)
}

// World is an apiserver with a proxy in front of it. Most tests share one world and use namespaces
// of their own. Tests that kill servers or count requests have a world of their own.
type World struct {
	API     *cluster.APIServer
	Proxy   *cluster.Proxy
	Admin   *kubernetes.Clientset // connects directly to the apiserver
	Dynamic *dynamic.DynamicClient
	Dir     string // for files of tests
}

// NewWorld starts a world that ends with the test.
func NewWorld(tb testing.TB) *World {
	tb.Helper()
	w := &World{API: cluster.APIServerT(tb, cluster.Options{}), Dir: tb.TempDir()}
	w.Proxy = cluster.ProxyT(tb, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, TLS: true})
	w.Admin, w.Dynamic = w.API.Client(), w.API.Dynamic()
	return w
}

// Namespace creates a namespace whose name is the given one with a unique suffix.
func (w *World) Namespace(tb testing.TB, name string) string {
	tb.Helper()
	return w.API.NamespaceT(tb, cluster.UniqueName(name))
}

// CreatePod creates a pod.
func (w *World) CreatePod(tb testing.TB, namespace string, p *corev1.Pod) *corev1.Pod {
	tb.Helper()
	created, err := w.Admin.CoreV1().Pods(namespace).Create(tb.Context(), p, metav1.CreateOptions{})
	cluster.MustT(tb, err)
	return created
}

// CreateConfigMap creates a configmap. It has the given label unless the label's name is empty.
func (w *World) CreateConfigMap(tb testing.TB, namespace, name, label, value string) *corev1.ConfigMap {
	tb.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if label != "" {
		object.Labels = map[string]string{label: value}
	}
	created, err := w.Admin.CoreV1().ConfigMaps(namespace).Create(tb.Context(), object, metav1.CreateOptions{})
	cluster.MustT(tb, err)
	return created
}

// LabelPatch returns a patch that sets one label.
func LabelPatch(name, value string) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{name: value}}})
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return patch
}

// FreshProxy starts another proxy in front of the apiserver, with TLS, the given settings and empty
// caches. It ends with the test.
func (w *World) FreshProxy(tb testing.TB, settings string) *cluster.Proxy {
	tb.Helper()
	return cluster.ProxyT(tb, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, Settings: settings, TLS: true})
}

// Endpoints returns the apiserver and the proxy, in this order.
func (w *World) Endpoints(tb testing.TB) [2]*cluster.Endpoint {
	tb.Helper()
	return [2]*cluster.Endpoint{w.API.EndpointT(tb), w.Proxy.EndpointT(tb)}
}

// ListVersion returns a list's resourceVersion.
func ListVersion(tb testing.TB, a cluster.Answer) string {
	tb.Helper()
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(a.Body, &list); err != nil || list.ResourceVersion == "" {
		tb.Fatalf("no resourceVersion in %d %.500s: %v", a.Status, a.Body, err)
	}
	return list.ResourceVersion
}

// Number returns a resourceVersion as a number.
func Number(tb testing.TB, version string) uint64 {
	tb.Helper()
	rv, err := strconv.ParseUint(version, 10, 64)
	cluster.MustT(tb, err)
	return rv
}

// Widgets are custom resources.
var Widgets = schema.GroupVersionResource{Group: "clients.test", Version: "v1", Resource: "widgets"}

// NewWidget returns a new widget.
func NewWidget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "clients.test/v1",
		"kind":       "Widget",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"size": int64(1)},
	}}
}

// DefineWidgets defines the resource and waits until the apiserver serves it and its OpenAPI
// document.
func (w *World) DefineWidgets(tb testing.TB) {
	tb.Helper()
	size := map[string]any{"type": "integer", "description": "How large it is."}
	column := map[string]any{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
	err := w.API.Define(tb.Context(), Widgets, "Widget",
		map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{"size": size}}},
		map[string]any{"additionalPrinterColumns": []any{column}})
	cluster.MustT(tb, err)
	cluster.Eventually(tb, "widgets are documented", func() bool {
		document, err := w.Admin.RESTClient().Get().AbsPath("/openapi/v3/apis/clients.test/v1").DoRaw(tb.Context())
		return err == nil && len(document) > 0
	})
}

// Terminate sends a proxy SIGTERM.
func Terminate(tb testing.TB, p *cluster.Proxy) {
	tb.Helper()
	cluster.MustT(tb, p.Signal(syscall.SIGTERM))
}

// AwaitEnd waits until a proxy's process has ended.
func AwaitEnd(tb testing.TB, p *cluster.Proxy) {
	tb.Helper()
	cluster.Eventually(tb, "the process ends", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID()))
		return errors.Is(err, os.ErrNotExist)
	})
}
