package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// validity is the time for which every certificate is valid, counted both back and forward from its
// creation, because tests may change their clock.
const validity = 10 * 365 * 24 * time.Hour

// authority is the CA that the apiserver and its clients trust. It signs the server's certificate
// and client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // cert in PEM
}

// loadAuthority reads the CA from dir, or creates it at the first start.
func loadAuthority(dir *stateDir) (*authority, error) {
	certPEM, err := dir.read("ca.crt")
	if err != nil {
		return nil, err
	}
	keyPEM, err := dir.read("ca.key")
	if err != nil {
		return nil, err
	}
	if certPEM == nil || keyPEM == nil {
		return newAuthority(dir)
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("%s or ca.key beside it is not PEM", dir.file("ca.crt"))
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", dir.file("ca.crt"), err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", dir.file("ca.key"), err)
	}
	return &authority{cert: cert, key: key, pem: certPEM}, nil
}

func newAuthority(dir *stateDir) (*authority, error) {
	template, err := newTemplate("kubeapi-ca")
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{cert: cert, key: key, pem: encodeCertificate(der)}
	if err := dir.write("ca.key", keyPEM, 0o600); err != nil {
		return nil, err
	}
	return a, dir.write("ca.crt", a.pem, 0o644)
}

// writeServingPair creates a certificate for every name that a client on this machine may use. It
// writes the certificate and its key as apiserver.crt and apiserver.key.
func (a *authority) writeServingPair(dir *stateDir, listenIP net.IP) error {
	template, err := newTemplate("kube-apiserver")
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, listenIP}
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := dir.write("apiserver.key", keyPEM, 0o600); err != nil {
		return err
	}
	return dir.write("apiserver.crt", encodeCertificate(der), 0o644)
}

// keepServiceAccountKey creates the key that signs service account tokens, unless it exists from an
// earlier start.
func keepServiceAccountKey(dir *stateDir) error {
	if kept, err := dir.read("sa.key"); err != nil || kept != nil {
		return err
	}
	_, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	return dir.write("sa.key", keyPEM, 0o600)
}

func newTemplate(commonName string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-validity),
		NotAfter:              now.Add(validity),
		BasicConstraintsValid: true,
	}, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
