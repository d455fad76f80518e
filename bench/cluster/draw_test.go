package cluster

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
)

// Three of four requests use HTTP/2. A repeated request uses the same protocol. A request with a
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
	const requests, least, most = 400, 250, 350
	came := 0
	for i := range requests {
		r := Get("/" + strconv.Itoa(i))
		first := major(r)
		if first == "2" {
			came++
		}
		if i%10 == 0 && (major(r) != first || major(r.With("Connection", "close")) != "1") {
			t.Errorf("%s: not as before, or not HTTP/1.1 with a header of its connection", r.Target)
		}
	}
	if came < least || came > most {
		t.Errorf("%d of %d requests came over HTTP/2", came, requests)
	}
}
