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
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// store writes a CA from another source into the Secret. The CA is signed by a parent or by itself.
func (w *world) store(t *testing.T, template, parent *x509.Certificate) (ca string) {
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
	text := encodePEM(der)
	w.secret.Data = map[string][]byte{"tls.crt": text, "tls.key": private}
	return string(text)
}

// Invariant 2 also holds for a CA from another source.
func TestRenewedCAKeepsItsSubject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		old := w.store(t, &x509.Certificate{
			Subject:   pkix.Name{CommonName: "ca", Organization: []string{"Example"}, Country: []string{"CH"}},
			NotBefore: time.Now(), NotAfter: time.Now().Add(365 * 24 * time.Hour), KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1, 2, 3},
		}, nil)
		i, err := w.start(t)
		if err != nil {
			t.Fatal(err)
		}
		if w.published() == old {
			t.Fatal("the CA is not renewed")
		}
		w.verifies(t, i)
		if err := i.accepted(t, old); err != nil {
			t.Errorf("a client with the old certificate: %v", err)
		}
		if id := leaf(t, &i.served).AuthorityKeyId; string(id) != "\x01\x02\x03" {
			t.Errorf("the id of the CA's key has become %x", id)
		}
	})
}

// A CA is not used if clients could not verify it on its own, or if it may not sign. It is not
// replaced.
func TestUnusableCA(t *testing.T) {
	for name, test := range map[string]struct {
		usage  x509.KeyUsage
		parent *x509.Certificate
	}{
		"of another CA": {x509.KeyUsageCertSign, &x509.Certificate{Subject: pkix.Name{CommonName: "root"}}},
		"may not sign":  {x509.KeyUsageDigitalSignature, nil},
	} {
		w := newWorld()
		w.store(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), KeyUsage: test.usage}, test.parent)
		if _, err := w.start(t); err == nil || !strings.Contains(err.Error(), "signed by itself") || w.secretWrites > 0 {
			t.Errorf("%s: %v, %d writes", name, err, w.secretWrites)
		}
	}
}
