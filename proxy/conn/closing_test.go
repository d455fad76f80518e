package conn

import (
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/cert"
)

// Cut ends the wait of TLS for a client that does not read that the connection ends.
func TestCutEndsClosing(t *testing.T) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("a", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := New(ours)
		c.Conn = tls.Server(c.socket, &tls.Config{Certificates: []tls.Certificate{pair}}) //nolint:gosec // a test
		var set Set
		if _, _, ok := set.add(c, 1, 1); !ok {
			t.Fatal("the set is full")
		}
		client := tls.Client(theirs, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}) //nolint:gosec // a test
		shaken := make(chan error, 1)
		go func() { shaken <- client.HandshakeContext(t.Context()) }()
		if _, err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := <-shaken; err != nil {
			t.Fatal(err)
		}
		began, closed := time.Now(), make(chan struct{})
		go func() {
			defer close(closed)
			_ = c.Close()
		}()
		synctest.Wait()
		set.Cut()
		<-closed
		if took := time.Since(began); took > 0 || set.Len() != 0 {
			t.Errorf("took %s, and %d connections are open", took, set.Len())
		}
	})
}
