package access

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// authority is its own client.
type authority struct {
	dynamiccertificates.CAContentProvider
	dynamiccertificates.ControllerRunner
	*x509.Certificate
}

// VerifyOptions implements dynamiccertificates.CAContentProvider.
func (a authority) VerifyOptions() (x509.VerifyOptions, bool) {
	roots := x509.NewCertPool()
	roots.AddCert(a.Certificate)
	return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}, true
}

// The owner of a certificate has its common name, is authenticated, and is impersonated upstream. chain.go
// tests when a certificate is verified.
func TestCertificates(t *testing.T) {
	text, _, err := cert.GenerateSelfSignedCertKey("client", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := cert.ParseCertsPEM(text)
	if err != nil {
		t.Fatal(err)
	}
	root := all[len(all)-1]
	a, err := New(&rest.Config{Host: "https://upstream", Transport: &judge{}}, &ClientCA{authority{Certificate: root}}, Options{}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []http.Header{nil, {"Authorization": {"Bearer good"}}} {
		c, err := a.Authenticate(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{root}}, Header: header})
		if err != nil || c.User.GetName() != root.Subject.CommonName || !slices.Contains(c.User.GetGroups(), "system:authenticated") || !c.ActsAsAnother() {
			t.Errorf("with %v: %+v, %v", header, c, err)
		}
	}
}

// A client's certificates have a bound, because its connection keeps them.
func TestLongCertificatesAreRefused(t *testing.T) {
	for more, want := range map[int]bool{0: true, 1: false} {
		if err := refuseLong([][]byte{make([]byte, certificatesMax/2), make([]byte, certificatesMax/2+more)}, nil); (err == nil) != want {
			t.Errorf("%d bytes more: %v", more, err)
		}
	}
}
