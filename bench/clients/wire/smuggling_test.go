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
)

// If the proxy answers a request before it has read the whole body, it closes the connection. So
// data in the body is never parsed as a request. Otherwise a web page could hide any request in the
// body of a refused request.
func TestUnreadBodyIsNoRequest(t *testing.T) {
	w := sharedWorld(t)
	e := w.Endpoints(t)[1]
	ns := w.Namespace(t, "smuggled")
	hidden := "DELETE /api/v1/namespaces/" + ns + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
	const last = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	bodies := map[string]string{
		"length":        fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hidden), hidden),
		"great length":  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 200<<10, strings.Repeat(hidden, (200<<10)/len(hidden)+1)[:200<<10]),
		"chunked":       fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
		"not a chunk":   "Transfer-Encoding: chunked\r\n\r\n" + hidden,
		"two chunks":    fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
		"chunks, ended": "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	}
	for name, request := range map[string]string{
		"refused":             "POST /version HTTP/1.1\r\nHost: evil.example\r\n",
		"too early":           "POST /nonsense HTTP/1.1\r\nHost: localhost\r\n",
		"unauthorized":        "POST /api/v1/namespaces/" + ns + "/configmaps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer garbage\r\n",
		"unsupported type":    "POST /api/v1/namespaces/" + ns + "/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n",
		"get":                 "GET /version HTTP/1.1\r\nHost: localhost\r\n",
		"get from the cache":  "GET /api/v1/pods?resourceVersion=0 HTTP/1.1\r\nHost: localhost\r\n",
		"bad target":          "POST http://%zz/ HTTP/1.1\r\nHost: localhost\r\n",
		"upgrade with a body": "POST /api/v1/namespaces/" + ns + "/pods/p/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
	} {
		for body, content := range bodies {
			t.Run(name+"/"+body, func(t *testing.T) {
				conn, answers := e.DialT(t)
				got := converse(conn, answers, request+content+last)
				if len(got) == 0 && body == "not a chunk" {
					return // the invalid body may end the forwarded request before upstream's answer arrives
				}
				if n := len(got); n == 0 || n > 2 || n == 2 && !strings.Contains(got[1], "200 OK {\n  \"major\"") {
					t.Errorf("got %d answers: %q", n, got)
				}
			})
		}
	}
	got := e.GetT(t, "/api/v1/namespaces/"+ns, nil)
	if got.Status != http.StatusOK || strings.Contains(string(got.Body), "deletionTimestamp") {
		t.Errorf("the hidden request was heard: %d %s", got.Status, got.Body)
	}
}

// converse writes the text, ignores errors because the proxy may already have closed the
// connection, and reads the answers.
func converse(conn net.Conn, answers *bufio.Reader, text string) []string {
	var writing sync.WaitGroup
	defer writing.Wait()
	defer conn.Close()
	writing.Go(func() { io.WriteString(conn, text) })
	return readAnswers(answers)
}

// readAnswers reads answers until the server closes the connection.
func readAnswers(from *bufio.Reader) (bodies []string) {
	for {
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			return bodies
		}
		body, _ := io.ReadAll(resp.Body)
		bodies = append(bodies, fmt.Sprintf("%s %.100s", resp.Status, body))
	}
}
