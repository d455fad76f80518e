package admin

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/conntest"
)

// A client that begins a body and does not finish it loses its connection, like a client that does
// not finish its header. Otherwise a few such clients take all connections from the probes.
func TestUnfinishedRequests(t *testing.T) {
	for name, sent := range map[string]string{
		"header":        "GET /livez HTTP/1.1\r\nHost: 10.0.0.1\r\n",
		"body":          "GET /livez HTTP/1.1\r\nHost: 10.0.0.1\r\nContent-Length: 10\r\n\r\nx",
		"chunks":        "GET /livez HTTP/1.1\r\nHost: 10.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx",
		"expected body": "GET /livez HTTP/1.1\r\nHost: 10.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAdmin(Options{})
				server, listener := a.Server(), conntest.Listen(4<<10)
				server.IdleTimeout = time.Minute
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(listener) }()
				here, err := listener.Dial()
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if _, err := io.WriteString(here, sent); err != nil {
					t.Fatal(err)
				}
				go func() {
					time.Sleep(time.Hour)
					here.Close()
				}()
				_, _ = io.Copy(io.Discard, here) // until the server closes it
				if took := time.Since(began); took > 2*adminHeaderTimeout {
					t.Errorf("the connection is open for %v", took)
				}
				if err := server.Close(); err != nil {
					t.Error(err)
				}
				if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}
