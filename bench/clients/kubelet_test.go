package clients

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubelet stands for the agent of a node. It serves what kube-apiserver asks of a kubelet that declares no features of
// its own: logs over plain HTTPS, and exec, attach and port-forward over SPDY/3.1, by which the apiserver asks also for
// clients that came by WebSocket.
//
// It has one pod. As its commands run on this machine, the pod's name is one that nobody else can guess.
type kubelet struct {
	namespace string
	pod       string
	follows   chan *follow // logs -f that have begun
	open      atomic.Int64 // exec, attach and port-forward in progress
}

// startKubelet makes a node with a kubelet and its pod, both of which end with the test.
func startKubelet(t *testing.T, w *world, name string) *kubelet {
	t.Helper()
	k := &kubelet{namespace: w.namespace(t, name), pod: "pod-" + strings.ToLower(rand.Text()), follows: make(chan *follow, 16)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.owned(k.logs))
	mux.HandleFunc("POST /exec/{namespace}/{pod}/{container}", k.owned(k.exec))
	mux.HandleFunc("POST /attach/{namespace}/{pod}/{container}", k.owned(k.attach))
	mux.HandleFunc("POST /portForward/{namespace}/{pod}", k.owned(k.portForward))
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that tests cut
	server.StartTLS()
	t.Cleanup(server.Close)

	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	nodes := w.admin.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := pod(k.pod)
	p.Spec.NodeName = k.namespace
	p = w.createPod(t, k.namespace, p)
	p.Status.Phase = corev1.PodRunning
	if _, err := w.admin.CoreV1().Pods(k.namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return k
}

// owned refuses requests for other pods, as a kubelet does.
func (k *kubelet) owned(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("namespace") != k.namespace || r.PathValue("pod") != k.pod {
			http.NotFound(w, r)
			return
		}
		serve(w, r)
	}
}

// follow is a logs -f in progress.
type follow struct {
	lines chan string     // what the container writes; closed when it ends
	gone  <-chan struct{} // closed when the reader has left
}

// logs answers with the parameters that reached it, or follows what the test writes.
func (k *kubelet) logs(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "text/plain")
	if query.Get("follow") == "" {
		fmt.Fprintf(w, "first line of %s\nasked for %s\n", r.PathValue("container"), withoutTime(query))
		return
	}
	flush := http.NewResponseController(w).Flush
	w.WriteHeader(http.StatusOK)
	flush()
	f := &follow{lines: make(chan string), gone: r.Context().Done()}
	k.follows <- f
	for {
		select {
		case line, more := <-f.lines:
			if !more {
				return
			}
			io.WriteString(w, line)
			flush()
		case <-f.gone:
			return
		}
	}
}

// withoutTime is a query without what differs from one second to the next.
func withoutTime(query url.Values) string {
	if query.Has("sinceTime") {
		query.Set("sinceTime", "some")
	}
	return query.Encode()
}
