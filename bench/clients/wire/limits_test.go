package wire

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func dial(t *testing.T, e *cluster.Endpoint) net.Conn {
	t.Helper()
	conn, _ := e.DialT(t)
	return conn
}

// A client that exceeds a limit gets an error. Other clients are not affected.
func TestLimits(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	proxy := w.FreshProxy(t, "limits: {maxWatchesPerIdentity: 2, maxConnections: 4}\n").EndpointT(t)
	const post = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	big := strings.Repeat("x", 4<<20)
	for name, test := range map[string]struct {
		request string
		want    int
	}{
		"header":        {"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Long: " + big[:65<<10] + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"URI":           {"GET /version?" + big[:65<<10] + " HTTP/1.1\r\nHost: localhost\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"body, length":  {fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", post, len(big), big), http.StatusRequestEntityTooLarge},
		"body, chunked": {fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", post, len(big), big), http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, proxy)
			var writing sync.WaitGroup
			defer writing.Wait()
			defer conn.Close()
			writing.Go(func() { io.WriteString(conn, test.request) }) // fails if the proxy has already closed the connection
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != test.want {
				t.Errorf("%s instead of %d", resp.Status, test.want)
			}
		})
	}
	const watch = "GET /api/v1/configmaps?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
	first := []net.Conn{dial(t, proxy), dial(t, proxy)}
	for _, conn := range first {
		if got := ask(t, conn, watch).StatusCode; got != http.StatusOK {
			t.Fatalf("watch: %d", got)
		}
	}
	third := dial(t, proxy)
	refuse(t, ask(t, third, watch), "watches")
	if got := ask(t, third, versionRequest).StatusCode; got != http.StatusOK {
		t.Errorf("then /version: %d", got)
	}
	fourth := dial(t, proxy)
	if got := ask(t, fourth, versionRequest).StatusCode; got != http.StatusOK {
		t.Errorf("fourth connection: %d", got)
	}
	fifth := dial(t, proxy)
	refuse(t, ask(t, fifth, versionRequest), "connections")
	first[0].Close()
	fifth.Close()
	cluster.Eventually(t, "the place of a watch that ended is free", func() bool {
		conn := dial(t, proxy)
		defer conn.Close()
		return ask(t, conn, watch).StatusCode == http.StatusOK
	})
}

func refuse(t *testing.T, resp *http.Response, what string) {
	t.Helper()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), what) {
		t.Errorf("%s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), body)
	}
}
