package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	everything = flag.Bool("everything", false, "all scenarios, not the short set")
	watching   = flag.Int("watchers", 60, "how many watchers a scenario has")
	seedFlag   = flag.Uint64("seed", 0, "of the random writes; 0 takes one from the clock")
	kills      = flag.Int("kills", 10, "how often TestKills kills the proxy")
	reportFile = flag.String("report", "", "write the table to a `FILE`")
)

func TestMain(m *testing.M) {
	var logging flag.FlagSet // informers tell of each watch that ends
	klog.InitFlags(&logging)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := logging.Set(name, value); err != nil {
			panic(err)
		}
	}
	klog.SetOutput(io.Discard)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// world is an apiserver, a proxy, and a relay on either side of it.
type world struct {
	api      *cluster.APIServer
	admin    *kubernetes.Clientset
	dynamic  dynamic.Interface
	of       resource
	writers  *writers
	trails   []*trail // of each selection, once etcd was restored
	up, down *relay   // upstream of the proxy, and downstream
	proxy    *cluster.Proxy
	config   string
	args     []string
	binary   string // of the proxy, empty for the usual one
	dir      string // of saved caches
	// persistent tells that there are any.
	persistent bool
	started    int // proxies
	relists    float64
	lists      float64
}

const header = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\ndrain: 500ms\n"

func newWorld(t *testing.T, api *cluster.APIServer, of resource, settings, binary string) *world {
	t.Helper()
	w := &world{api: api, of: of, dir: t.TempDir(), binary: binary}
	var err error
	if w.dynamic, err = dynamic.NewForConfig(w.api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if w.admin, err = kubernetes.NewForConfig(w.api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	w.up = startRelay(t, w.api.URL)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := w.api.WriteKubeconfigAt(kubeconfig, w.up.url("https"), w.api.Token); err != nil {
		t.Fatal(err)
	}
	w.config = filepath.Join(t.TempDir(), "config.yaml")
	if settings != "" {
		w.persistent = true
		settings = fmt.Sprintf(settings, w.dir)
	}
	settings = header + settings
	if err := os.WriteFile(w.config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	w.args = []string{"--kubeconfig", kubeconfig, "--config", w.config}
	w.start(t, "")
	w.down = startRelay(t, w.proxy.URL)
	return w
}

// start starts a proxy, again at the address that it had.
func (w *world) start(t *testing.T, listen string) {
	t.Helper()
	w.proxy = cluster.ProxyT(t, cluster.ProxyOptions{Binary: w.binary, Listen: listen, Args: w.args})
	w.started++
}

// restart ends the proxy, by a kill or in an orderly way, and starts another one in its place.
func (w *world) restart(t *testing.T, kill bool) {
	t.Helper()
	w.count(t)
	listen := w.proxy.URL[len("http://"):]
	if kill {
		w.proxy.Kill()
	} else if err := w.proxy.Stop(); err != nil {
		t.Error(err)
	}
	w.start(t, listen)
}

// count adds what the present proxy asked of upstream.
func (w *world) count(t *testing.T) {
	t.Helper()
	m, err := w.proxy.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := fmt.Sprintf("resource=%q", w.of.Resource)
	w.relists += m.Sum("watchproxy_feed_relists_total", of)
	w.lists += m.Sum("watchproxy_feed_requests_total", of, `verb="list"`)
}

// awaitSave waits until a cache was saved: before that, a restart is one without.
func (w *world) awaitSave(t *testing.T) {
	t.Helper()
	for {
		files, err := os.ReadDir(w.dir)
		if err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if filepath.Ext(f.Name()) == ".cache" {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// suspend stops a process for a while, as a machine that swaps does.
func suspend(pid int, for_ time.Duration) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	time.Sleep(for_)
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// direct is the apiserver, without anything in between.
func (w *world) direct(t *testing.T) server {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.api.CA)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return server{url: w.api.URL, token: w.api.Token, http: &http.Client{Transport: tr}}
}

// client is the proxy by the relay, on connections of its own.
func (w *world) client(t *testing.T) server {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return server{url: w.down.url("http"), http: &http.Client{Transport: tr}}
}

// namespace makes one, and returns a resourceVersion at which it is empty.
func (w *world) namespace(t *testing.T, name string) uint64 {
	t.Helper()
	if _, err := w.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.of == gadgets {
		w.of.define(t.Context(), t, w)
	}
	// The apiserver knows of its history only from the oldest event that it has kept.
	anchor := w.of.object("anchor-"+name, colours[0], "0")
	if _, err := w.dynamic.Resource(w.of.GroupVersionResource).Namespace("default").Create(t.Context(), anchor, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := readList(t.Context(), w.direct(t), w.of, name)
	if err != nil {
		t.Fatal(err)
	}
	return got.rv
}

// awaken makes the proxy follow the resource.
func (w *world) awaken(ctx context.Context, s server, namespace string) error {
	for {
		_, err := readList(ctx, s, w.of, namespace)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx)
	}
}
