package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// validity is that of a serving certificate, which is replaced when a third of it is left.
	validity = 30 * 24 * time.Hour
	// skew is the maximum delay of a client's clock.
	skew = 10 * time.Minute
)

type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// newAuthority makes a CA, which is valid for ten years.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	name := fmt.Sprintf("watchproxy-ca@%d", now.Unix())
	config := cert.Config{CommonName: name, NotBefore: now.Add(-skew)}
	certificate, err := cert.NewSelfSignedCACert(config, key)
	return &authority{certificate, key}, err
}

// parseAuthority parses a CA that clients accept: self-signed, allowed to sign, and not expired.
func parseAuthority(certificate, key []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	a := &authority{pair.Leaf, pair.PrivateKey.(crypto.Signer)} // as X509KeyPair's keys are
	if err := a.certificate.CheckSignatureFrom(a.certificate); err != nil {
		return nil, fmt.Errorf("the CA must be signed by itself: %w", err)
	}
	if end := a.certificate.NotAfter; time.Now().After(end) {
		return nil, fmt.Errorf("the CA has expired at %v", end)
	}
	return a, nil
}

func (a *authority) encode() (certificate, key []byte, err error) {
	if key, err = keyutil.MarshalPrivateKeyToPEM(a.key); err != nil {
		return nil, nil, err
	}
	return encodePEM(a.certificate.Raw), key, nil
}

// pair is a serving certificate with its key, as PEM.
type pair struct {
	certificate, key []byte
	made, renew      time.Time // by the wall clock, which may be set, like the certificate's times
}

// isDue is also true if the clock was set back to a time before this certificate was made.
func (p *pair) isDue(now time.Time) bool { return now.Before(p.made) || !now.Before(p.renew) }

func (a *authority) issue(names, addresses []string) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now().Round(0)
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "watchproxy"},
		DNSNames:    names,
		NotBefore:   now.Add(-skew),
		NotAfter:    now.Add(validity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	p := &pair{certificate: encodePEM(der), made: now, renew: now.Add(validity * 2 / 3)}
	p.key, err = keyutil.MarshalPrivateKeyToPEM(key)
	return p, err
}

func encodePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}
