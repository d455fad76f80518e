package proxy

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Short responses of kube-apiserver's own groups are written as a whole. Other responses may be
// streams, so each of their pieces is written when it arrives.
func TestShortAnswersAreBuffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		defer close(over)
		s, _ := serveForwards(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("first line\n"))
			w.(http.Flusher).Flush()
			if r.URL.Query().Has("follow") {
				select {
				case <-over:
				case <-r.Context().Done():
				}
			}
		}, testLimits())
		ask := func(path, query string) chan *exchange.Response {
			answered := make(chan *exchange.Response, 1)
			go func() {
				req := &exchange.Request{Method: http.MethodGet, Target: path + "?" + query, Path: path, Query: query, Header: http.Header{}, Client: exchange.Nobody{}, Conn: noConn{}}
				rt := exchange.ParseRoute(req.Method, path)
				answered <- s.handle(t.Context(), req, &rt)
			}()
			return answered
		}
		for range 2 { // a response in flight does not block the next response
			select {
			case resp := <-ask("/apis/example.org/v1/namespaces/n/things/t", "follow=1"):
				if resp.Reader == nil {
					t.Errorf("%d: a stream was read to its end", resp.Status)
				}
			case <-time.After(testWait):
				t.Fatal("a stream is held back")
			}
		}
		select {
		case resp := <-ask("/api/v1/namespaces/n/pods/p", "x=1"):
			if string(resp.Bytes) != "first line\n" {
				t.Errorf("%d: %q was not buffered", resp.Status, resp.Bytes)
			}
		case <-time.After(testWait):
			t.Fatal("no answer")
		}
	})
}
