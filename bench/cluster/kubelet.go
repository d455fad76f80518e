package cluster

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NewPod returns a pod that the apiserver accepts.
func NewPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "test"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

// KubeletT creates a node and a running pod on it. The handler serves as the node's kubelet. Node
// and pod end with the test.
func (s *APIServer) KubeletT(tb testing.TB, node, namespace, pod string, serve http.Handler) {
	tb.Helper()
	kubelet := httptest.NewUnstartedServer(serve)
	// Tests cut connections, and the server would log the errors.
	kubelet.Config.ErrorLog = log.New(io.Discard, "", 0)
	kubelet.StartTLS()
	tb.Cleanup(kubelet.Close)
	nodes, pods := s.Client().CoreV1().Nodes(), s.Client().CoreV1().Pods(namespace)
	must := func(err error) {
		tb.Helper()
		MustT(tb, err)
	}
	n, err := nodes.Create(tb.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	must(err)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
	_, err = nodes.UpdateStatus(tb.Context(), n, metav1.UpdateOptions{})
	must(err)
	p := NewPod(pod)
	p.Spec.NodeName = node
	p, err = pods.Create(tb.Context(), p, metav1.CreateOptions{})
	must(err)
	p.Status.Phase = corev1.PodRunning
	_, err = pods.UpdateStatus(tb.Context(), p, metav1.UpdateOptions{})
	must(err)
	tb.Cleanup(func() {
		ctx := context.WithoutCancel(tb.Context())
		if err := pods.Delete(ctx, pod, *metav1.NewDeleteOptions(0)); err != nil {
			tb.Error(err)
		}
		if err := nodes.Delete(ctx, node, metav1.DeleteOptions{}); err != nil {
			tb.Error(err)
		}
	})
}
