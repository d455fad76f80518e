package wire

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// ask writes a request verbatim and reads the head of the answer.
func ask(t *testing.T, conn net.Conn, request string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	cluster.MustT(t, err)
	return resp
}

const versionRequest = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"

// After the files change, new connections get the new certificate, and old connections go on. If
// certificate and key do not match, nothing changes.
func TestCertificateReload(t *testing.T) {
	proxy := sharedWorld(t).FreshProxy(t, "")
	replace := func(what func([]byte) error, by []byte) {
		t.Helper()
		cluster.MustT(t, what(by))
	}
	first := proxy.CA
	trusts := func(certificate []byte) (*tls.Conn, error) {
		return tls.Dial("tcp", proxy.Address(), cluster.Trust(certificate))
	}
	old, err := trusts(first)
	cluster.MustT(t, err)
	defer old.Close()
	second, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	cluster.MustT(t, err)
	replace(proxy.ReplaceCertificate, second)
	if conn, err := trusts(first); err != nil {
		t.Errorf("with half of a new pair: %v", err)
	} else {
		conn.Close()
	}
	replace(proxy.ReplaceKey, key)
	cluster.Eventually(t, "the new certificate is served", func() bool {
		conn, err := trusts(second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	if got := ask(t, old, versionRequest).StatusCode; got != http.StatusOK {
		t.Errorf("on the old connection: %d", got)
	}
	if _, err := tls.Dial("tcp", proxy.Address(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}
