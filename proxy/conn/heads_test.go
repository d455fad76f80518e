package conn

import (
	"crypto/tls"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// A handshake counts, too: TLS keeps up to 256 KiB of it.
func TestHandshakesAreBounded(t *testing.T) {
	for _, full := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client, accepted := conntest.Pipe(64 << 10)
			defer client.Close()
			heads := &Heads{Strangers: fair.NewPool(1<<20, true), Users: fair.NewPool(1<<20, true)}
			c := New(accepted)
			c.heads, c.Conn = heads, tls.Server(c.socket, &tls.Config{}) //nolint:gosec // a test
			if full {
				heads.Strangers.Try("others", heads.Strangers.Capacity)
			}
			const part = 16 << 10
			hello := append([]byte{0x16, 3, 1, part >> 8, 0, 1, 0, 0xf0, 0}, make([]byte, part-4)...) // a ClientHello of 60 KiB
			if _, err := client.Write(append(hello, 0x16, 3, 1, part>>8, 0)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			_, err := c.Handshake()
			if errors.Is(err, ErrHeads) != full || full != (time.Since(began) == 0) {
				t.Errorf("without room: %t, %v after %s", full, err, time.Since(began))
			}
			if n := heads.Strangers.Taken() % heads.Strangers.Capacity; n != 0 {
				t.Errorf("%d bytes are held", n)
			}
		})
	}
}
