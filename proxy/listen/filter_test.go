package listen

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/filter"
)

// A watch with an expensive filter receives its events even while the pump is blocked.
func TestExpensiveFilterIsNotThePumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.Roomy(t)
		s := newServer(func(*exchange.Request) *exchange.Response {
			p := watchOf(t, c)
			selector, err := labels.Parse(strings.TrimSuffix(strings.Repeat("!k,", 40), ","))
			if err != nil {
				t.Error(err)
			}
			if p.Filter, err = filter.New(c.Resource(), "a", selector, nil); err != nil {
				t.Error(err)
			}
			resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
			resp.Stream = watch.New(p)
			return resp
		}, nil, 0)
		s.pump.Most = -1 // the pump starts no goroutines
		l := conntest.Listen(unbuffered)
		_, end := s.runs(t, l)
		defer end()
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return l.Dial() }}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("http://a/watch")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		cachetest.Apply(t, c, cachetest.Sized(t, 2, 10))
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err != nil || !strings.Contains(line, `"resourceVersion":"2"`) {
			t.Errorf("it got %q, %v", line, err)
		}
	})
}
