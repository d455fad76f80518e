package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// text returns a request without a body, as its bytes on the connection.
func text(e *cluster.Endpoint, protocol string, r request) string {
	var b bytes.Buffer
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s\r\n", method, r.Target, protocol, e.Address())
	e.Headers(r).Write(&b)
	b.WriteString("\r\n")
	return b.String()
}

// receive reads one response and its body.
func receive(br *bufio.Reader, r request) (*http.Response, []byte, error) {
	resp, err := http.ReadResponse(br, &http.Request{Method: r.Method})
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// conversation returns a mixture of requests. Their responses come from the cache and from the
// apiserver, are small and large, and have a body or no body.
func conversation() []request {
	return []request{
		get(configMaps.expand(configMaps.in("a") + "?resourceVersion=$N&resourceVersionMatch=Exact")),
		get(configMaps.in("a") + "/plain?resourceVersion=0"),
		get(configMaps.in("a") + "/nobody?resourceVersion=0"),
		get(configMaps.in("a") + "/plain"),
		get("/version"),
		{Method: http.MethodHead, Target: widgets.in("a") + "/numbers"},
		{Method: http.MethodHead, Target: configMaps.all()},
		{Method: http.MethodHead, Target: widgets.all()}, // the length is not in a header
		get(configMaps.in("a") + "/nobody"),
		get("/nonsense"),
		get(configMaps.in("a") + "/large"),
		get(configMaps.in("a") + "?watch=true&resourceVersion=1000000000&timeoutSeconds=1"),
		get(widgets.expand(widgets.in("many") + "?resourceVersion=$N&resourceVersionMatch=Exact")),
		get(configMaps.in("a") + "?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"),
		get(planets.all() + "/earth?resourceVersion=0"),
	}
}

// One connection carries many requests. Each of them gets the same response as on a separate
// connection. The connection ends only after a watch whose client has already sent its next request,
// and the proxy says so. The client then opens another connection.
func TestConnectionReuse(t *testing.T) {
	t.Parallel()
	for _, sending := range []struct {
		name string
		// piece is the number of bytes sent together. If it is 0, each request is sent after the
		// response to the previous request.
		piece int
	}{
		{"pipelined", 1 << 20}, {"in pieces", 100}, {"one after another", 0},
	} {
		for _, e := range []*cluster.Endpoint{apiserver, proxied} {
			t.Run(sending.name+" to the "+e.Name, func(t *testing.T) {
				t.Parallel()
				for rest := alone(t, e, conversation()); len(rest) > 0; {
					rest = rest[converse(t, e, sending.piece, rest):]
				}
			})
		}
	}
}

// converse sends requests over one connection until the connection ends or all requests are
// answered. It returns the number of answered requests.
func converse(t *testing.T, e *cluster.Endpoint, piece int, exchanges []exchange) (answered int) {
	t.Helper()
	conn, br := e.DialT(t)
	send := func(rest string, piece int) {
		for ; rest != ""; rest = rest[min(piece, len(rest)):] {
			if _, err := io.WriteString(conn, rest[:min(piece, len(rest))]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if piece > 0 {
		var all strings.Builder
		for _, x := range exchanges {
			all.WriteString(text(e, "HTTP/1.1", x.request))
		}
		send(all.String(), piece)
	}
	for i, x := range exchanges {
		if piece == 0 {
			send(text(e, "HTTP/1.1", x.request), 1<<20)
		}
		if !x.answered(t, br).Close {
			continue
		}
		if e == apiserver || piece == 0 || !strings.Contains(x.Target, "watch=") {
			t.Errorf("%s %s: the connection was closed", x.Method, x.Target)
		}
		ends(t, br)
		return i + 1
	}
	return len(exchanges)
}

// ends checks that a connection ends without further data.
func ends(t *testing.T, br *bufio.Reader) {
	t.Helper()
	if rest, err := io.ReadAll(br); err != nil || len(rest) > 0 {
		t.Errorf("the connection did not end: %q, %v", rest, err)
	}
}

// exchange is a request and its response on a separate connection.
type exchange struct {
	request
	alone reply
}

// alone sends each request on a separate connection, all requests concurrently.
func alone(t *testing.T, e *cluster.Endpoint, requests []request) []exchange {
	t.Helper()
	exchanges := make([]exchange, len(requests))
	err := workload.Parallel(t.Context(), len(requests), len(requests), func(ctx context.Context, i int) (err error) {
		exchanges[i].request = requests[i]
		exchanges[i].alone, err = e.Ask(ctx, requests[i])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return exchanges
}

// answered reads and checks the response to a request that was sent.
func (x exchange) answered(t *testing.T, br *bufio.Reader) *http.Response {
	t.Helper()
	resp, body, err := receive(br, x.request)
	if err != nil {
		t.Fatalf("%s %s: %v", x.Method, x.Target, err)
	}
	if err := Compare(x.alone, reply{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil); err != nil {
		t.Fatalf("%s %s: %v", x.Method, x.Target, err)
	}
	return resp
}

// If a client asks for the end of the connection, the proxy closes it after the response. An
// HTTP/1.0 client asks for that by default and does not understand chunks.
func TestLastRequestOfAConnection(t *testing.T) {
	t.Parallel()
	requests := append(conversation(), get(configMaps.in("a")+"?resourceVersion=0&watch=true&timeoutSeconds=1"))
	for _, e := range []*cluster.Endpoint{apiserver, proxied} {
		for protocol, connection := range map[string]string{"HTTP/1.1": "close", "HTTP/1.0": ""} {
			t.Run(e.Name+", "+protocol, func(t *testing.T) {
				t.Parallel()
				exchanges := alone(t, e, requests)
				// Send all requests before reading the first response, because some responses take a
				// second.
				readers := make([]*bufio.Reader, len(exchanges))
				for i, x := range exchanges {
					var conn net.Conn
					conn, readers[i] = e.DialT(t)
					if _, err := io.WriteString(conn, text(e, protocol, x.With("Connection", connection))); err != nil {
						t.Fatal(err)
					}
				}
				for i, x := range exchanges {
					t.Run(x.Method+" "+x.Target, func(t *testing.T) {
						resp := x.answered(t, readers[i])
						if protocol == "HTTP/1.0" && len(resp.TransferEncoding) > 0 {
							t.Errorf("transfer encoding %q", resp.TransferEncoding)
						}
						ends(t, readers[i])
					})
				}
			})
		}
	}
}

// Both servers refuse malformed requests with the same status, but possibly with different texts.
func TestMalformedRequests(t *testing.T) {
	for _, text := range []string{
		"GET /api/v1/namespaces/a/pods/web%zz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"GET api/v1/pods HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"GET /api/v1/pods\r\nHost: 127.0.0.1\r\n\r\n",
		"GET /api/v1/pods HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
		"GET /api/v1/pods HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
	} {
		t.Run(strings.SplitN(text, "\r\n", 2)[0], func(t *testing.T) {
			for _, e := range []*cluster.Endpoint{apiserver, proxied} {
				conn, br := e.DialT(t)
				whose := text
				// Otherwise a proxy that authenticates refuses the request for lack of a token.
				if e.Token != "" {
					whose = strings.Replace(text, "\r\n\r\n", "\r\nAuthorization: Bearer "+e.Token+"\r\n\r\n", 1)
				}
				if _, err := io.WriteString(conn, whose); err != nil {
					t.Fatal(err)
				}
				if resp, body, err := receive(br, request{}); err != nil || resp.StatusCode != http.StatusBadRequest {
					t.Errorf("%s: %v %q, %v", e.Name, resp, body, err)
				}
			}
		})
	}
}

// A client that sends Expect: 100-continue gets a 100, and then sends its body.
func TestExpectContinue(t *testing.T) {
	home := newNamespaces(t, "expected", 1)[0]
	for _, e := range []*cluster.Endpoint{apiserver, proxied} {
		t.Run(e.Name, func(t *testing.T) {
			body := object{of: configMaps, namespace: home, name: e.Name, fields: data("k", strings.Repeat("x", 500_000))}.json()
			r := request{Method: http.MethodPost, Target: configMaps.in(home)}.With("Content-Type", "application/json").
				With("Content-Length", strconv.Itoa(len(body))).With("Expect", "100-continue")
			conn, br := e.DialT(t)
			if _, err := io.WriteString(conn, text(e, "HTTP/1.1", r)); err != nil {
				t.Fatal(err)
			}
			if resp, _, err := receive(br, r); err != nil || resp.StatusCode != http.StatusContinue {
				t.Fatalf("%v, %v", resp, err)
			}
			if _, err := io.WriteString(conn, body); err != nil {
				t.Fatal(err)
			}
			if resp, said, err := receive(br, r); err != nil || resp.StatusCode != http.StatusCreated {
				t.Errorf("%v %.300q, %v", resp, said, err)
			}
		})
	}
}

// A long list of values fits into a request.
func TestLongRequest(t *testing.T) {
	values := strings.Repeat("a-value-that-nobody-has,", 2000) + "web"
	fewer := strings.Repeat("a-value-that-nobody-has,", 900) + "web"
	selecting := func(values string) request {
		return get(pods.expand(pods.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&labelSelector=app+in+(" + values + ")"))
	}
	many := get(pods.in("a") + "/web-1?resourceVersion=0")
	for i := range 100 {
		many = many.With(fmt.Sprintf("X-Header-%d", i), strings.Repeat("y", 100))
	}
	check(t, []row{
		{name: "selector", request: selecting(fewer), status: 200, from: cache},
		{name: "selector of more terms than are kept", request: selecting(values), status: 200, from: upstream},
		{name: "header", request: get(pods.in("a")+"/web-1?resourceVersion=0").With("X-Long", values), status: 200, from: cache},
		{name: "a hundred headers", request: many, status: 200, from: cache},
	})
}
