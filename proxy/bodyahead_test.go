package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// Several requests on one connection have large bodies that cannot be read before their requests are
// sent. The bodies of waiting requests do not block the body of a request with a slot.
func TestWaitingBodiesLetOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.Forwards = 1
		s, address := serveForwards(t, func(_ http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, r.Body); n < 100<<10 || err != nil {
				t.Errorf("upstream has read %d bytes, %v", n, err)
			}
		}, limits)
		client := clientTo(t, address, "h2")
		ctx, cancel := context.WithTimeout(t.Context(), testWait)
		defer cancel()
		done := make(chan int, 2)
		post := func(body io.Reader) {
			code, err := client.send(ctx, "", http.MethodPost, "/apis/example.com/v1/namespaces/a/things", body)
			if err != nil {
				t.Error(err)
			}
			done <- code
		}
		slowly, rest := io.Pipe()
		go post(slowly)
		if _, err := io.WriteString(rest, "{"); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the first is upstream", func() bool { return s.limits.queues.forwards.Taken() == 1 })
		const crowd = 3
		for range crowd {
			go post(struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 400<<10))})
		}
		waitFor(t, "the others wait", func() bool { return s.limits.queues.forwards.Waiting() == crowd })
		if _, err := io.WriteString(rest, strings.Repeat("x", 200<<10)); err != nil {
			t.Error(err)
		}
		_ = rest.Close()
		for range crowd + 1 {
			if code := <-done; code != http.StatusOK {
				t.Errorf("answered with %d", code)
			}
		}
	})
}

// Kube-apiserver refuses long bodies, so the proxy does. Aggregated APIs and pods decide for themselves.
func TestLongBodies(t *testing.T) {
	const (
		core       = "/api/v1/namespaces/a/pods"
		aggregated = "/apis/build.example.com/v1/namespaces/a/builds/b/instantiatebinary"
		pod        = "/api/v1/namespaces/a/pods/a/proxy/upload"
		long       = bodyMax + 1
	)
	for _, test := range []struct {
		path       string
		size, code int
	}{
		{core, bodyMax, 200}, {core, long, 413}, {aggregated, bodyMax, 200}, {aggregated, long, 200}, {pod, long, 200},
	} {
		for _, known := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				_, address := serveForwards(t, func(_ http.ResponseWriter, r *http.Request) {
					if n, err := io.Copy(io.Discard, r.Body); n != int64(test.size) && test.code == http.StatusOK {
						t.Errorf("%s: upstream has read %d bytes, %v", test.path, n, err)
					}
				}, testLimits())
				body := io.Reader(strings.NewReader(strings.Repeat("x", test.size)))
				if !known {
					body = struct{ io.Reader }{body}
				}
				code, err := clientTo(t, address, "h2").send(t.Context(), "", http.MethodPost, test.path, body)
				if code != test.code || err != nil {
					t.Errorf("%s: %d bytes, length known: %t: %d, %v", test.path, test.size, known, code, err)
				}
			})
		}
	}
}
