package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// caValidity is the validity of a new CA.
	caValidity = 10 * 365 * 24 * time.Hour
	// renewBefore is the time before the CA's expiry at which its certificate is renewed. Clients
	// have this time to read the new certificate.
	renewBefore = 2 * 365 * 24 * time.Hour
	// validity is the validity of a serving certificate. The next certificate is made when a third
	// of this time is left.
	validity = 30 * 24 * time.Hour
	// skew is the maximum delay of a client's clock.
	skew = 10 * time.Minute
)

// authority is a CA with its key.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// newAuthority makes a CA.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return selfSigned(&x509.Certificate{Subject: pkix.Name{CommonName: fmt.Sprintf("watchproxy-ca@%d", time.Now().Unix())}}, key)
}

// renewed returns the CA with a new certificate for the same key and subject.
func (a *authority) renewed() (*authority, error) {
	of := a.certificate
	return selfSigned(&x509.Certificate{RawSubject: of.RawSubject, SubjectKeyId: of.SubjectKeyId, NotBefore: of.NotBefore}, a.key)
}

// selfSigned makes a CA with the subject of a template. The CA is valid from now on, or from an
// earlier start in the template.
func selfSigned(template *x509.Certificate, key crypto.Signer) (_ *authority, err error) {
	if template.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	now := time.Now()
	if template.NotAfter = now.Add(caValidity); template.NotBefore.IsZero() || now.Add(-skew).Before(template.NotBefore) {
		template.NotBefore = now.Add(-skew)
	}
	template.KeyUsage, template.BasicConstraintsValid, template.IsCA = x509.KeyUsageDigitalSignature|x509.KeyUsageCertSign, true, true
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	return &authority{c, key}, err
}

func newSerial() (*big.Int, error) {
	const serialBits = 127
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
}

// parseAuthority parses a CA. It checks that the CA may sign and is self-signed, so that clients
// can verify it.
func parseAuthority(certificate, key []byte) (*authority, error) {
	all, err := cert.ParseCertsPEM(certificate)
	if err != nil {
		return nil, err
	}
	a := &authority{certificate: all[0]}
	if len(all) != 1 || !a.certificate.IsCA {
		return nil, errors.New("it must have the certificate of one CA")
	}
	if err := a.certificate.CheckSignatureFrom(a.certificate); err != nil {
		return nil, fmt.Errorf("the CA must be signed by itself: %w", err)
	}
	private, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return nil, err
	}
	var ok bool
	if a.key, ok = private.(crypto.Signer); !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", private)
	}
	public, ok := a.key.Public().(interface {
		Equal(other crypto.PublicKey) bool
	})
	if !ok || !public.Equal(a.certificate.PublicKey) {
		return nil, errors.New("the certificate is not that of the private key")
	}
	return a, nil
}

// encode returns the certificate and the key as PEM.
func (a *authority) encode() (certificate, key []byte, err error) {
	if key, err = keyutil.MarshalPrivateKeyToPEM(a.key); err != nil {
		return nil, nil, err
	}
	return encodePEM(a.certificate.Raw), key, nil
}

// isDue reports whether the CA's certificate must be renewed. It must be renewed before it expires.
// It must also be renewed if it is not valid yet, because a replica whose clock is ahead has made
// it.
func (a *authority) isDue() bool {
	return time.Until(a.certificate.NotAfter) < renewBefore || time.Now().Before(a.certificate.NotBefore)
}

// pair is a serving certificate with its key, as PEM.
type pair struct {
	certificate, key []byte
	made, renew      time.Time // by the wall clock, which may be set, like the certificate's times
}

// isDue reports whether the next serving certificate must be made. This is also true if the clock
// was set back to a time before this certificate was made.
func (p *pair) isDue(now time.Time) bool { return now.Before(p.made) || !now.Before(p.renew) }

// issue makes a serving certificate with a new key.
func (a *authority) issue(names, addresses []string) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now().Round(0)
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "watchproxy"},
		DNSNames:     names,
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
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
