package clients

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// BobsToken is the token of the user bob. After AllowBob, bob may read configmaps in namespace
// default, and nothing else.
const BobsToken = "bobs-token"

// NewWorld starts a world that ends with the test.
func NewWorld(tb testing.TB) *World {
	tb.Helper()
	w := &World{API: cluster.APIServerT(tb, cluster.Options{Users: BobsToken + ",bob,bob\n"}), Dir: tb.TempDir()}
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
	if err != nil {
		tb.Fatal(err)
	}
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
	if err != nil {
		tb.Fatal(err)
	}
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
func (w *World) FreshProxy(tb testing.TB, settings string, args ...string) *cluster.Proxy {
	tb.Helper()
	return cluster.ProxyT(tb, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, Settings: settings, Args: args, TLS: true})
}

// Endpoints returns the apiserver and the proxy, in this order.
func (w *World) Endpoints(tb testing.TB) [2]*cluster.Endpoint {
	tb.Helper()
	return [2]*cluster.Endpoint{w.API.EndpointT(tb), w.Proxy.EndpointT(tb)}
}

// unverified trusts every certificate, because the tests' servers are on loopback.
var unverified = &http.Client{Transport: &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
}}

// TryGet returns the answer to a GET, or status 0 if there was none.
func TryGet(tb testing.TB, url string) (status int, body []byte) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := unverified.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close() //nolint:errcheck // what was read is what counts
	if body, err = io.ReadAll(resp.Body); err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, body
}

// Get returns the body of the answer to a GET, which must be 200.
func Get(tb testing.TB, url string) []byte {
	tb.Helper()
	status, body := TryGet(tb, url)
	if status != http.StatusOK {
		tb.Fatalf("%s: %d\n%s", url, status, body)
	}
	return body
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
	if err != nil {
		tb.Fatal(err)
	}
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
	if err != nil {
		tb.Fatal(err)
	}
	cluster.Eventually(tb, "widgets are documented", func() bool {
		document, err := w.Admin.RESTClient().Get().AbsPath("/openapi/v3/apis/clients.test/v1").DoRaw(tb.Context())
		return err == nil && len(document) > 0
	})
}

// Terminate sends a proxy SIGTERM.
func Terminate(tb testing.TB, p *cluster.Proxy) {
	tb.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		tb.Fatal(err)
	}
}

// AwaitEnd waits until a proxy's process has ended.
func AwaitEnd(tb testing.TB, p *cluster.Proxy) {
	tb.Helper()
	cluster.Eventually(tb, "the process ends", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID()))
		return errors.Is(err, os.ErrNotExist)
	})
}

// AllowBob gives bob the right to read configmaps in namespace default.
func (w *World) AllowBob(tb testing.TB) {
	tb.Helper()
	err := w.API.Allow(tb.Context(), "default", "bob", cluster.Users("bob"),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		tb.Fatal(err)
	}
	bob := w.Endpoints(tb)[0]
	bob.Token = BobsToken
	cluster.Eventually(tb, "bob may list configmaps", func() bool {
		return bob.GetT(tb, "/api/v1/namespaces/default/configmaps", nil).Status == http.StatusOK
	})
}
