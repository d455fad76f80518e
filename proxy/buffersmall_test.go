package proxy

import (
	"bufio"
	"net/http"
	"testing"
	"testing/synctest"
)

// Short responses of kube-apiserver's own groups are written as a whole, so their length is known.
// Other responses may be streams, so each of their pieces is written when it arrives.
func TestShortAnswersAreBuffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = "first line\n"
		_, address := serveForwards(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(text))
			w.(http.Flusher).Flush()
			if r.URL.Query().Has("follow") {
				<-r.Context().Done()
			}
		}, testLimits())
		client := clientTo(t, address, "http/1.1")
		for range 2 { // a response in flight does not block the next response
			resp := client.open(t, "/apis/example.org/v1/namespaces/n/things/t?follow=1")
			if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != text || err != nil || resp.ContentLength >= 0 {
				t.Errorf("%q, %v, with a length of %d", line, err, resp.ContentLength)
			}
		}
		if resp, body := client.get(t, podsPath+"/p?x=1"); body != text || resp.ContentLength != int64(len(text)) {
			t.Errorf("%q, with a length of %d", body, resp.ContentLength)
		}
	})
}
