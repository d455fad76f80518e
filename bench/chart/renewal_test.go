//go:build verify

package chart

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A running application does not notice that the CA and the serving certificate are renewed. The CA's
// certificate in the sidecar's volume is replaced by one of the same key that expires in a year,
// because the sidecar renews it two years before its end.
func TestInClusterRenewal(t *testing.T) {
	r := newPodRun(t, fromChart)
	app := r.newApplication()
	_, err := app.Start(t.Context())
	must(t, err)
	t.Cleanup(app.Kill)
	for _, name := range []string{"listed", "watched"} { // after the second pod, the watch is open
		r.createPod(name)
		r.shows(app, "ADDED "+name)
	}
	published := filepath.Join(r.volumes["watchproxy-serviceaccount"], "ca.crt")
	before, err := os.ReadFile(published)
	must(t, err)
	first, answers := r.serving(before), r.cached()

	expireSoon(t, filepath.Join(r.volumes["watchproxy-authority"], "authority.pem"))
	cluster.Eventually(t, "a client with the previous ca.crt gets a new certificate", func() bool { return !r.serving(before).Equal(first) })
	cluster.Eventually(t, "the renewed CA is published", func() bool {
		now, err := os.ReadFile(published)
		must(t, err)
		block, _ := pem.Decode(now)
		if block == nil {
			t.Fatalf("ca.crt has no certificate: %s", now)
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		must(t, err)
		// A client that has read only the new file also accepts the certificate.
		return time.Until(ca.NotAfter) > 9*year && !r.serving(pem.EncodeToMemory(block)).Equal(first)
	})
	r.createPod("after")
	r.shows(app, "ADDED after")
	if now := r.cached(); now != answers {
		t.Errorf("the application has asked again: %v answers from the cache instead of %v", now, answers)
	}
}

// serving returns the sidecar's certificate, which a client with these CAs has verified.
func (r *podRun) serving(authorities []byte) *x509.Certificate {
	r.Helper()
	conn, err := tls.Dial("tcp", r.listen, cluster.Trust(authorities))
	must(r.T, err)
	must(r.T, conn.Close())
	return conn.ConnectionState().PeerCertificates[0]
}

const year = 365 * 24 * time.Hour

// expireSoon replaces a CA by the same one, but with a certificate that expires in a year.
func expireSoon(t *testing.T, path string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(path, path)
	must(t, err)
	ca, err := x509.ParseCertificate(pair.Certificate[0])
	must(t, err)
	old := &x509.Certificate{
		SerialNumber: ca.SerialNumber, Subject: pkix.Name{CommonName: ca.Subject.CommonName}, SubjectKeyId: ca.SubjectKeyId,
		NotBefore: time.Now().Add(-9 * year), NotAfter: time.Now().Add(year),
		KeyUsage: ca.KeyUsage, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, old, old, ca.PublicKey, pair.PrivateKey)
	must(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	content = append(content, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	must(t, os.WriteFile(path+".new", content, 0o600))
	must(t, os.Rename(path+".new", path))
}
