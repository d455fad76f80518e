package cluster

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
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a CA that signs client certificates.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// Authority returns the CA that the apiserver trusts.
func (s *APIServer) Authority() (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(s.Dir, "ca.crt"), filepath.Join(s.Dir, "ca.key"))
	if err != nil {
		return nil, fmt.Errorf("the apiserver's CA: %w", err)
	}
	return &Authority{pair.Leaf, pair.PrivateKey.(crypto.Signer)}, nil
}

// AuthorityT is Authority, but fails the test if there is an error.
func (s *APIServer) AuthorityT(tb testing.TB) *Authority {
	tb.Helper()
	a, err := s.Authority()
	MustT(tb, err)
	return a
}

// ImpostorT returns a CA with the same name that no server trusts.
func (a *Authority) ImpostorT(tb testing.TB) *Authority {
	tb.Helper()
	key := NewKeyT(tb)
	template := *a.Certificate
	template.PublicKey, template.SignatureAlgorithm, template.PublicKeyAlgorithm = nil, 0, 0
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	MustT(tb, err)
	certificate, err := x509.ParseCertificate(der)
	MustT(tb, err)
	return &Authority{certificate, key}
}

// Sign creates a user's certificate that expires after lasts. If lasts is negative, the certificate
// has already expired.
func (a *Authority) Sign(lasts time.Duration, user string, groups ...string) (*tls.Certificate, error) {
	const bits = 127
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits))
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-24 * time.Hour),
		NotAfter:     time.Now().Add(lasts),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.Certificate, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", user, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// SignT is Sign, but fails the test if there is an error.
func (a *Authority) SignT(tb testing.TB, lasts time.Duration, user string, groups ...string) *tls.Certificate {
	tb.Helper()
	certificate, err := a.Sign(lasts, user, groups...)
	MustT(tb, err)
	return certificate
}

// NewKeyT creates a private key.
func NewKeyT(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	MustT(tb, err)
	return key
}

// selfSigned creates a certificate for loopback that signs itself.
func selfSigned() (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "localhost"},
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	return PEM(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private})
}

// PEM returns a certificate and its key as files have them.
func PEM(c *tls.Certificate) (certificate, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
