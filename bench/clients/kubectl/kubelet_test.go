package kubectl

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
)

// kubelet is a test kubelet that declares no features. For such a kubelet, kube-apiserver uses
// plain HTTPS for logs, and SPDY/3.1 for exec and attach, even if the client uses WebSockets.
//
// It has one pod. The pod's commands run on this machine, so the pod's name must be hard to guess.
type kubelet struct {
	namespace string
	pod       string
	follows   chan *follow // receives each logs -f that begins
	open      atomic.Int64 // exec and attach in progress
}

// startKubelet creates a node with a kubelet and its pod. Both end with the test.
func startKubelet(t *testing.T, w *clients.World, name string) *kubelet {
	t.Helper()
	k := &kubelet{namespace: w.Namespace(t, name), pod: "pod-" + strings.ToLower(rand.Text()), follows: make(chan *follow, 16)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.owned(k.logs))
	mux.HandleFunc("POST /exec/{namespace}/{pod}/{container}", k.owned(k.exec))
	mux.HandleFunc("POST /attach/{namespace}/{pod}/{container}", k.owned(k.attach))
	w.API.KubeletT(t, k.namespace, k.namespace, k.pod, mux)
	return k
}

// owned refuses requests for other pods, like a real kubelet.
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

// logs answers with the query parameters that it received, or follows what the test writes.
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

// withoutTime returns a query without the parts that vary with time.
func withoutTime(query url.Values) string {
	if query.Has("sinceTime") {
		query.Set("sinceTime", "some")
	}
	return query.Encode()
}
