package clients

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// configMap is one as JSON, with so many bytes of data.
func configMap(name string, size int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"key":%q}}`, name, strings.Repeat("x", size))
}

// message is what an answer says is wrong, or the size of the data that was stored.
func (a answer) message(t *testing.T) string {
	t.Helper()
	var got struct {
		Message string
		Data    map[string]string
	}
	if err := json.Unmarshal(a.body, &got); err != nil {
		return fmt.Sprintf("%d: %.200s", a.status, a.body)
	}
	return fmt.Sprintf("%d: %s %d", a.status, got.Message, len(got.Data["key"]))
}

// Bodies of any size, of a known length or in chunks, have the same outcome. So has what follows on the connection.
func TestRequestBodies(t *testing.T) {
	w := sharedWorld(t)
	outside, through := w.namespace(t, "bodies-o"), w.namespace(t, "bodies-t")
	endpoints := w.endpoints(t)
	const mega = 1 << 20
	for i, size := range []int{0, 64<<10 - 1, 64 << 10, 300_000, mega, mega + 1, 3*mega - 200, 3*mega + 1, 20 * mega} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("size=%d,chunked=%t", size, chunked), func(t *testing.T) {
				body := configMap(fmt.Sprintf("object-%d-%t", i, chunked), size)
				var said [2]string
				for j, ns := range []string{outside, through} {
					length := int64(len(body))
					if chunked {
						length = -1
					}
					target := "/api/v1/namespaces/" + ns + "/configmaps"
					got := endpoints[j].send(t, http.MethodPost, target, nil, io.MultiReader(bytes.NewReader(body)), length)
					said[j] = strings.ReplaceAll(got.message(t), ns, "NAMESPACE")
					if after := endpoints[j].get(t, "/version", nil); after.status != http.StatusOK {
						t.Errorf("%s: then /version is %d", endpoints[j].name, after.status)
					}
				}
				if said[0] != said[1] {
					t.Errorf("\napiserver %s\nproxy     %s", said[0], said[1])
				}
				if want := map[bool]string{true: "201", false: "4"}[size <= mega]; !strings.HasPrefix(said[0], want) {
					t.Errorf("the apiserver says %s", said[0])
				}
			})
		}
	}
}

// dial opens a bare connection.
func (e endpoint) dial(t *testing.T, w *world) (net.Conn, *bufio.Reader) {
	t.Helper()
	target, err := url.Parse(e.url)
	if err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	if target.Scheme == "https" {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.api.CA)
		conn, err = tls.Dial("tcp", target.Host, &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}})
	} else {
		conn, err = net.Dial("tcp", target.Host)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// A client that asks before it sends a body is asked for it, and told before it sends it that it is too large.
func TestExpectContinue(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "expect-continue")
	for _, e := range w.endpoints(t) {
		t.Run(e.name, func(t *testing.T) {
			conn, answers := e.dial(t, w)
			body := configMap("asked-"+e.name, 500_000)
			head := func(length int) string {
				return fmt.Sprintf("POST /api/v1/namespaces/%s/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\n"+
					"Content-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", ns, "Bearer "+e.token, length)
			}
			if e.token == "" {
				h := head
				head = func(length int) string { return strings.Replace(h(length), "Authorization: Bearer \r\n", "", 1) }
			}
			io.WriteString(conn, head(len(body)))
			if line, err := answers.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if line, err := answers.ReadString('\n'); err != nil || line != "\r\n" {
				t.Fatalf("%q, %v", line, err)
			}
			conn.Write(body)
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != http.StatusCreated {
				t.Errorf("%s", resp.Status)
			}
		})
	}
}

// Long request lines and many headers pass.
func TestLongRequests(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "long-requests")
	named := pod("named")
	named.Labels["n"] = "value-77"
	w.createPod(t, ns, named)
	values := make([]string, 4000)
	for i := range values {
		values[i] = fmt.Sprintf("value-%d", i)
	}
	selector := url.QueryEscape("n in (" + strings.Join(values, ",") + ")") // about 50 KB
	many := http.Header{"X-Large": {strings.Repeat("x", 30<<10)}}
	for i := range 100 {
		many.Set(fmt.Sprintf("X-Header-%d", i), strings.Repeat("y", 100))
	}
	for name, test := range map[string]struct {
		target string
		header http.Header
	}{
		"forwarded list": {"/api/v1/namespaces/" + ns + "/pods?labelSelector=" + selector, nil},
		"cached list":    {"/api/v1/namespaces/" + ns + "/pods?resourceVersion=0&labelSelector=" + selector, nil},
		"headers":        {"/api/v1/namespaces/" + ns + "/pods", many},
	} {
		t.Run(name, func(t *testing.T) {
			for _, e := range w.endpoints(t) {
				got := e.get(t, test.target, test.header)
				if got.status != http.StatusOK || !bytes.Contains(got.body, []byte(`"name":"named"`)) {
					t.Errorf("%s: %d %.200s", e.name, got.status, got.body)
				}
			}
		})
	}
}

// A body that is none is the client's mistake, not upstream's absence.
func TestBrokenBody(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "broken")
	conn, answers := w.endpoints(t)[1].dial(t, w)
	request := "POST /api/v1/namespaces/" + ns + "/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
		"Transfer-Encoding: chunked\r\n\r\n8\r\n{\"kind\":\r\nnonsense\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if got := readAnswers(answers); len(got) != 1 || !strings.HasPrefix(got[0], "400 ") {
		t.Errorf("got %q", got)
	}
}
