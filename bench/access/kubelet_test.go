package access

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// startKubelet creates a node and a pod on it. The node's kubelet accepts every upgrade and echoes
// the data. All end with the test.
func startKubelet(t *testing.T, w *world, name string) {
	t.Helper()
	w.api.KubeletT(t, name, teamA, name, http.HandlerFunc(echo))
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

// upgrade sends an upgrade request, by default for SPDY. The apiserver passes the upgrade on to the
// kubelet unchanged, and the kubelet echoes the data.
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

// handshake sends an upgrade request on a connection of its own, which ends with the test.
func (s *server) handshake(t *testing.T, c *caller, r request) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, from := s.endpoint(c).DialT(t)
	req, err := http.NewRequestWithContext(t.Context(), r.method, s.url+r.target, http.NoBody)
	cluster.MustT(t, err)
	req.Header = s.header(c, r)
	req.Header.Set("Connection", "Upgrade")
	cluster.MustT(t, req.Write(conn))
	resp, err := http.ReadResponse(from, req)
	cluster.MustT(t, err)
	return conn, from, resp
}
