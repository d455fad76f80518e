package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startKubelet makes a node whose kubelet agrees to every upgrade and sends back what it reads, and a pod on it. It ends
// with the test.
func startKubelet(t *testing.T, w *world, name string) {
	t.Helper()
	k := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	k.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that tests cut
	k.StartTLS()
	t.Cleanup(k.Close)
	_, port, err := net.SplitHostPort(k.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	clients := w.admin.CoreV1()
	node, err := clients.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	if _, err := clients.Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := clients.Pods(teamA).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	if _, err := clients.Pods(teamA).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		ctx := context.WithoutCancel(t.Context())
		if err := clients.Pods(teamA).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
		if err := clients.Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func echo(w http.ResponseWriter, r *http.Request) {
	conn, stream, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	io.Copy(conn, stream)
}

// upgrade asks for SPDY unless the request says what for. The apiserver passes it on to the kubelet as it is: what is said
// is heard again.
func (s *server) upgrade(t *testing.T, c *caller, r request) {
	t.Helper()
	if r.header.Get("Upgrade") == "" {
		r.method = http.MethodPost
		r.header = r.header.Clone()
		r.header.Set("Upgrade", "SPDY/3.1")
	}
	conn, from, resp := s.handshake(t, c, r)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s: %s: %s %s", s.name, c.name, r.target, resp.Status, body)
	}
	const said = "hello\n"
	io.WriteString(conn, said)
	if heard, err := from.ReadString('\n'); err != nil || heard != said {
		t.Errorf("%s: %s: %s: heard %q, %v", s.name, c.name, r.target, heard, err)
	}
}

// handshake sends a request for an upgrade over a connection of its own, which ends with the test.
func (s *server) handshake(t *testing.T, c *caller, r request) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn := s.dial(t, c)
	req, err := http.NewRequestWithContext(t.Context(), r.method, s.url+r.target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = s.header(c, r)
	req.Header.Set("Connection", "Upgrade")
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, req)
	if err != nil {
		t.Fatal(err)
	}
	return conn, from, resp
}

// dial opens a connection for HTTP/1.1 that ends with the test.
func (s *server) dial(t *testing.T, c *caller) net.Conn {
	t.Helper()
	config := s.tlsConfig(c.cert)
	config.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(limit))
	return conn
}
