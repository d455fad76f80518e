package proxy

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// With GoawayChance, a request makes its client open another connection. Requests in flight stay on
// the old connection and are not affected.
func TestGoawayChance(t *testing.T) {
	for chance, want := range map[float64]int64{0: 1, 1: 4} {
		synctest.Test(t, func(t *testing.T) {
			c, at := cachetest.ConfigMaps(t, 3)
			options := testOptions()
			options.Limits.GoawayChance = chance
			_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, options)
			client, dials := clientTo(t, address, "h2"), atomic.Int64{}
			client.DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
				dials.Add(1)
				return address.dial(ctx, network, to)
			}
			watch := client.open(t, watchTarget+strconv.FormatUint(at.ResourceVersion(), 10))
			for range 3 {
				synctest.Wait() // until the client knows of the last GOAWAY; otherwise it may dial twice for a request
				if resp, body := client.get(t, "/api/v1/namespaces/a/configmaps?resourceVersion=0"); resp.StatusCode != http.StatusOK {
					t.Fatalf("chance %v: %s %s", chance, resp.Status, body)
				}
			}
			if got := dials.Load(); got != want {
				t.Errorf("chance %v: a watch and three lists use %d connections, want %d", chance, got, want)
			}
			cachetest.Apply(t, c, cachetest.ConfigMap(t, 1, 9))
			if line, err := bufio.NewReader(watch.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"type":"MODIFIED"`) {
				t.Errorf("chance %v: the watch shows %q, %v", chance, line, err)
			}
		})
	}
}
