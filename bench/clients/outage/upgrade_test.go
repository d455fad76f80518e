package outage

import (
	"os"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Two apiservers of one cluster are upgraded to another version, one after the other, under load. The
// proxy compares its state with that of the new version, which writes the same bytes. So it reads no
// state again, no watch ends, and each watch sees every change once. The other version is that of make
// compat, or the same one that emulates an older one.
func TestRollingUpgrade(t *testing.T) {
	next := os.Getenv("WATCHPROXY_KUBEAPI_NEXT")
	w := clients.NewWorld(t)
	servers, options := twoServers(t, w, cluster.Options{})
	w.Proxy = cluster.ProxyT(t, options)
	version := func() string { return string(w.Proxy.EndpointT(t).GetT(t, "/version", nil).Body) }
	before := version()
	crowd := newCrowd(t, w)
	writer := startWriter(t, w)
	writer.proceed(t, 50)
	for _, s := range servers {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		writer.proceed(t, 100)
		crowd.stay(t)
		if next == "" {
			s.Reconfigure("--emulated-version=1.36")
		}
		s.Upgrade(next)
		start(t, s)
		cluster.Eventually(t, "the upgraded server is used", func() bool {
			return w.Proxy.MetricsT(t).Sum("watchproxy_upstream_server_usable", cluster.Label("server", s.Address())) == 1
		})
		writer.proceed(t, 100)
	}
	cluster.Eventually(t, "the proxy shows another version", func() bool { return version() != before })
	writer.proceed(t, 100)
	crowd.stay(t)
	crowd.check(t, w, writer)
	if n := w.Proxy.MetricsT(t).Sum("watchproxy_feed_relists_total"); n != 0 {
		t.Errorf("%v relists", n)
	}
	if log := w.Proxy.Log(); strings.Contains(log, `"level":"error"`) {
		t.Errorf("the proxy logs errors:\n%s", log)
	}
}
