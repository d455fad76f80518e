package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates for clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// clusterAuthority is the one that the apiserver trusts.
func clusterAuthority(dir string) (*authority, error) {
	block, err := readPEM(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(block)
	if err != nil {
		return nil, err
	}
	key, err := readKey(filepath.Join(dir, "ca.key"))
	return &authority{cert, key}, err
}

// foreignAuthority is one that nobody trusts, of the same name.
func foreignAuthority(like *authority) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := *like.cert
	template.PublicKey, template.SignatureAlgorithm, template.PublicKeyAlgorithm = nil, 0, 0
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

// sign makes a certificate for a user that is valid until a moment.
func (a *authority) sign(until time.Time, user string, groups ...string) (*tls.Certificate, error) {
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
		NotAfter:     until,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// serviceAccountToken is a token as the apiserver's issuer signs them, but for claims that it would not.
func serviceAccountToken(key *ecdsa.PrivateKey, namespace, name, uid string, expires time.Time) (string, error) {
	const day = 24 * time.Hour
	claims, err := json.Marshal(map[string]any{
		"iss": issuer,
		"aud": []string{issuer},
		"sub": "system:serviceaccount:" + namespace + ":" + name,
		"iat": expires.Add(-day).Unix(),
		"nbf": expires.Add(-day).Unix(),
		"exp": expires.Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      namespace,
			"serviceaccount": map[string]any{"name": name, "uid": uid},
		},
	})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", err
	}
	const half = 32 // bytes of each number of a P-256 signature
	signature := make([]byte, 2*half)
	r.FillBytes(signature[:half])
	s.FillBytes(signature[half:])
	return signed + "." + encode(signature), nil
}

// issuer is that of kubeapi.
const issuer = "https://kubernetes.default.svc"

func readKey(path string) (*ecdsa.PrivateKey, error) {
	block, err := readPEM(path)
	if err != nil {
		return nil, err
	}
	return x509.ParseECPrivateKey(block)
}

func readPEM(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", path)
	}
	return block.Bytes, nil
}
