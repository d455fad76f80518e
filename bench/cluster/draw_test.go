package cluster

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
)

// Requests use the protocols that are drawn for them. A repeated request uses the same protocol. A request with a
// header for the connection uses HTTP/1.1.
func TestProtocols(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Major", strconv.Itoa(r.ProtoMajor))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	e := NewEndpoint("server", s.URL, "", s.Client().Transport.(*http.Transport).TLSClientConfig)
	defer e.CloseIdle()
	major := func(r Request) string { return e.AskT(t, r).Header.Get("Major") }
	const requests = 100
	came := map[string]bool{}
	for i := range requests {
		r := Get("/" + strconv.Itoa(i))
		first := major(r)
		came[first] = true
		if drawn := map[Protocol]string{HTTP1: "1", HTTP2: "2"}[e.drawn(r)]; first != drawn {
			t.Errorf("%s came over HTTP/%s instead of HTTP/%s", r.Target, first, drawn)
		}
		if i%10 == 0 && (major(r) != first || major(r.With("Connection", "close")) != "1") {
			t.Errorf("%s: not as before, or not HTTP/1.1 with a header of its connection", r.Target)
		}
	}
	if !came["1"] || !came["2"] {
		t.Errorf("requests came over HTTP/%v only", slices.Collect(maps.Keys(came)))
	}
}
