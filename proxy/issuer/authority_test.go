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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/keyutil"
)

// secretOf returns a Secret with a CA from another source.
func secretOf(t *testing.T, signs bool, name, signer string, lasts time.Duration) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if signs {
		template.KeyUsage = x509.KeyUsageCertSign
	}
	parent, by := *template, key
	if parent.Subject.CommonName = signer; signer != name {
		by, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, &parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{certificateKey: encodePEM(der), privateKey: private}
}

// A CA is not used if clients could not verify it on its own, if it may not sign, or after its expiry. Nothing
// in a Secret is replaced (invariant 3), and errors name a remedy.
func TestRefusals(t *testing.T) {
	foreign := secretOf(t, true, "ca", "ca", time.Hour)
	foreign[privateKey] = secretOf(t, true, "ca", "ca", time.Hour)[privateKey]
	resource := schema.GroupResource{Resource: "secrets"}
	for name, test := range map[string]struct {
		data map[string][]byte
		err  error
		want string
	}{
		"no key":             {data: map[string][]byte{certificateKey: []byte("x")}, want: "tls.crt and tls.key are no CA"},
		"no certificate":     {data: map[string][]byte{privateKey: []byte("x")}, want: "tls.crt and tls.key are no CA"},
		"not PEM":            {data: map[string][]byte{certificateKey: []byte("x"), privateKey: []byte("y")}, want: "remove both"},
		"missing":            {err: apierrors.NewNotFound(resource, "ca"), want: "create it, empty"},
		"forbidden":          {err: apierrors.NewForbidden(resource, "ca", nil), want: "let the proxy get and update it"},
		"with another's key": {data: foreign, want: "does not match"},
		"of another CA":      {data: secretOf(t, true, "ca", "root", time.Hour), want: "signed by itself"},
		"may not sign":       {data: secretOf(t, false, "ca", "ca", time.Hour), want: "signed by itself"},
		"expired":            {data: secretOf(t, true, "ca", "ca", -time.Second), want: "expired"},
	} {
		w := newWorld()
		w.secret.Data = test.data
		w.fail(test.err)
		if _, err := w.start(t); err == nil || !strings.Contains(err.Error(), test.want) || w.secretWrites > 0 {
			t.Errorf("%s: %v, %d writes", name, err, w.secretWrites)
		}
	}
}
