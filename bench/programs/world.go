package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// world is the cluster, and the two roads to it.
type world struct {
	*options
	root, dir       string
	api             *cluster.APIServer
	admin           *kubernetes.Clientset
	proxy           *cluster.Proxy
	kubelet         *httptest.Server // of all nodes, for logs
	direct, through *road
}

// road is a way to the apiserver, through a relay that counts.
type road struct {
	name, kubeconfig string
	relay            *cluster.Relay
}

func (w *world) start(ctx context.Context) (err error) {
	w.root = cluster.Root()
	if w.dir, err = os.MkdirTemp("", "watchproxy-programs-"); err != nil {
		return err
	}
	if w.api, err = cluster.StartAPIServer(ctx, cluster.Options{Dir: filepath.Join(w.dir, "kubeapi")}); err != nil {
		return err
	}
	w.admin = w.api.Client()
	w.proxy, err = cluster.StartProxy(ctx, cluster.ProxyOptions{
		Kubeconfig: w.api.Kubeconfig, Binary: w.watchproxy, TLS: true, Args: []string{"--authentication=delegated"},
	})
	if err != nil {
		return err
	}
	if w.direct, err = w.open("directly", w.api.Address(), w.api.CA); err != nil {
		return err
	}
	w.through, err = w.open("through", w.proxy.Address(), w.proxy.CA)
	return err
}

func (w *world) open(name, address string, ca []byte) (*road, error) {
	relay, err := cluster.StartRelay(func() string { return address })
	if err != nil {
		return nil, err
	}
	r := &road{name, filepath.Join(w.dir, name+".kubeconfig"), relay}
	return r, cluster.WriteKubeconfig(r.kubeconfig, "https://"+relay.Address(), ca, clientcmdapi.AuthInfo{Token: w.api.Token})
}

// fill creates nodes with one kubelet for all, and the pods.
func (w *world) fill(ctx context.Context) error {
	w.kubelet = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(rw, "a line of", r.URL.Path)
	}))
	_, port, err := net.SplitHostPort(w.kubelet.Listener.Addr().String())
	if err != nil {
		return err
	}
	if err := workload.CreateNamespaces(ctx, w.admin); err != nil {
		return err
	}
	for i := range workload.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: workload.NodeName(i)}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		if _, err := fmt.Sscan(port, &node.Status.DaemonEndpoints.KubeletEndpoint.Port); err != nil {
			return err
		}
		if _, err := w.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := w.admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	const atATime = 48
	return workload.Parallel(ctx, w.pods, atATime, func(ctx context.Context, i int) error {
		return workload.CreatePod(ctx, w.admin, workload.NewPod(i))
	})
}

// requests returns how many requests the apiserver has answered or is answering, except those of
// the bench.
func (w *world) requests(ctx context.Context) (float64, error) {
	text, err := w.admin.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("cannot read the apiserver's metrics: %w", err)
	}
	m := cluster.Metrics(text)
	return m.Sum("apiserver_request_total") + m.Sum("apiserver_longrunning_requests") - m.Sum("apiserver_request_total", `subresource="/metrics"`) -
		m.Sum("apiserver_request_total", `subresource="/readyz"`), nil
}

// environment is that of all programs. Each run has a home of its own, without cached discovery.
func (w *world) environment(r *road) ([]string, error) {
	home, err := os.MkdirTemp(w.dir, "home-")
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TERM=xterm", "KUBECONFIG=" + r.kubeconfig, "USE_EXISTING_CLUSTER=true",
		"KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=true", "KUBE_CACHE_MUTATION_DETECTOR=true",
		"NODE_PATH=" + filepath.Join(w.root, "bin", "node-client", "node_modules"),
	}, err
}

func (w *world) close() error {
	var errs []error
	for _, r := range []*road{w.direct, w.through} {
		if r != nil {
			r.relay.Close()
		}
	}
	if w.proxy != nil {
		errs = append(errs, w.proxy.Close())
	}
	if w.api != nil {
		errs = append(errs, w.api.Close())
	}
	if w.kubelet != nil {
		w.kubelet.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
