package issuer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// store writes a CA from another source into the Secret. The CA is signed by a parent or by itself.
func (w *world) store(t *testing.T, template, parent *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.BasicConstraintsValid, template.IsCA = big.NewInt(1), true, true
	signer := key
	if parent == nil {
		parent = template
	} else if signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	w.secret.Data = map[string][]byte{"tls.crt": encodePEM(der), "tls.key": private}
}

// A CA is not used if clients could not verify it on its own, if it may not sign, or after its expiry.
// It is not replaced.
func TestUnusableCA(t *testing.T) {
	for name, test := range map[string]struct {
		usage  x509.KeyUsage
		parent *x509.Certificate
		end    time.Duration
		want   string
	}{
		"of another CA": {x509.KeyUsageCertSign, &x509.Certificate{Subject: pkix.Name{CommonName: "root"}}, time.Hour, "signed by itself"},
		"may not sign":  {x509.KeyUsageDigitalSignature, nil, time.Hour, "signed by itself"},
		"expired":       {x509.KeyUsageCertSign, nil, -time.Second, "expired"},
	} {
		w := newWorld()
		w.store(t, &x509.Certificate{
			Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(test.end), KeyUsage: test.usage,
		}, test.parent)
		if _, err := w.start(t); err == nil || !strings.Contains(err.Error(), test.want) || w.secretWrites > 0 {
			t.Errorf("%s: %v, %d writes", name, err, w.secretWrites)
		}
	}
}
