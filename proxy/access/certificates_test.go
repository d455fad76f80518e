package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
)

// authorities has one CA and counts the verifications that use it.
type authorities struct {
	dynamiccertificates.CAContentProvider
	dynamiccertificates.ControllerRunner

	pool     *x509.CertPool
	verified int
}

// VerifyOptions implements dynamiccertificates.CAContentProvider.
func (a *authorities) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: a.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
}

// A client's certificate is verified once for all requests of a connection.
func TestCertificateIsVerifiedOnce(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string, issuer *x509.Certificate) *x509.Certificate {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if issuer == nil {
			issuer = template
		}
		raw, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	ca := &authorities{pool: x509.NewCertPool()}
	root := issue("root", nil)
	ca.pool.AddCertWithConstraint(root, func([]*x509.Certificate) error { ca.verified++; return nil })
	a, err := New(&rest.Config{Host: "https://upstream", Transport: &judge{}}, &ClientCA{ca}, Options{}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	client := issue("client", root)
	for connections := range 3 {
		state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{client}}
		for range 100 {
			caller, err := a.Authenticate(&http.Request{TLS: state})
			if err != nil || caller.User.GetName() != "client" || caller.User.GetGroups()[0] != "system:authenticated" {
				t.Fatalf("%+v, %v", caller, err)
			}
		}
		if ca.verified != connections+1 {
			t.Errorf("%d verifications for 100 requests of each of %d connections", ca.verified, connections+1)
		}
	}
}

// A client's certificates have a bound, because its connection keeps them.
func TestLongCertificatesAreRefused(t *testing.T) {
	if err := refuseLong([][]byte{make([]byte, certificatesMax/2), make([]byte, certificatesMax/2)}, nil); err != nil {
		t.Error(err)
	}
	if err := refuseLong([][]byte{make([]byte, certificatesMax/2), make([]byte, certificatesMax/2+1)}, nil); err == nil {
		t.Error("accepted")
	}
}
