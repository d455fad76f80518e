package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Short responses of kube-apiserver's own groups are written as a whole. Other responses may be
// streams, so each of their pieces is written when it arrives.
func TestShortAnswersAreBuffered(t *testing.T) {
	over := make(chan struct{})
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("first line\n"))
		w.(http.Flusher).Flush()
		if r.URL.Query().Has("follow") {
			select {
			case <-over:
			case <-r.Context().Done():
			}
		}
	}))
	defer behind.Close()
	defer close(over)
	forwards, err := forwarderTo(&rest.Config{Host: behind.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(forwardsAll{}, forwards, newStore(t, 1),
		Options{AnyHost: true, Limits: exchange.Limits{URIBytes: 1 << 10, HeaderBytes: 1 << 16, Forwards: 10, UserConnections: 10}}, metrics.New(prometheus.NewRegistry()), zap.NewNop())
	ask := func(path, query string) chan *exchange.Response {
		answered := make(chan *exchange.Response, 1)
		go func() {
			req := &exchange.Request{Method: http.MethodGet, Target: path + "?" + query, Path: path, Query: query, Header: http.Header{}, Client: exchange.Nobody{}, Conn: noConn{}}
			rt := exchange.ParseRoute(req.Method, path)
			answered <- s.handle(t.Context(), req, &rt)
		}()
		return answered
	}
	const soon = 10 * time.Second
	for range 2 { // a response in flight does not block the next response
		select {
		case resp := <-ask("/apis/example.org/v1/namespaces/n/things/t", "follow=1"):
			if resp.Reader == nil {
				t.Errorf("%d: a stream was read to its end", resp.Status)
			}
		case <-time.After(soon):
			t.Fatal("a stream is held back")
		}
	}
	select {
	case resp := <-ask("/api/v1/namespaces/n/pods/p", "x=1"):
		if string(resp.Bytes) != "first line\n" {
			t.Errorf("%d: %q was not buffered", resp.Status, resp.Bytes)
		}
	case <-time.After(soon):
		t.Fatal("no answer")
	}
}
