package conn

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Drain loses no connection that is in the backlog, even without any time for handshakes and if the
// kernel cannot refuse new clients, as with multipath TCP. Accept returns each of them, and then
// the listener is closed.
func TestDrainTakesTheBacklog(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		network, address string
		multipath        bool
	}{
		"TCP":           {"tcp", "127.0.0.1:0", false},
		"multipath TCP": {"tcp", "127.0.0.1:0", true},
		"Unix socket":   {"unix", filepath.Join(t.TempDir(), "s"), false},
	} {
		t.Run(name, func(t *testing.T) {
			var lc net.ListenConfig
			lc.SetMultipathTCP(of.multipath)
			kernel, err := lc.Listen(t.Context(), of.network, of.address)
			if err != nil {
				t.Fatal(err)
			}
			const clients = 20
			l, _, _, _ := listenerOf(kernel, exchange.Limits{Connections: clients})
			for range clients {
				c, err := net.Dial(of.network, kernel.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
			}
			if err := l.Drain(0); err != nil {
				t.Fatal(err)
			}
			accepted := 0
			for ; ; accepted++ {
				c, err := l.Accept()
				if err != nil {
					break
				}
				t.Cleanup(func() { _ = c.Close() })
			}
			if accepted != clients {
				t.Errorf("%d of %d connections were accepted", accepted, clients)
			}
			if c, err := net.Dial(of.network, kernel.Addr().String()); err == nil {
				_ = c.Close()
				t.Error("a client could connect after the listener was drained")
			}
		})
	}
}
