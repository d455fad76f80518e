package access

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A user of the admin address from elsewhere may get what RBAC allows for its nonResourceURLs, by a
// token or a certificate. A header marks the requests that come from elsewhere.
func TestAdminAddress(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	metrics := rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
	if err := w.api.Allow(t.Context(), "", "scrapers", cluster.Users("reader", "carol"), metrics); err != nil {
		t.Fatal(err)
	}
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: w.api.KubeconfigT(t, w.api.URL, tokenOf(proxyUser)), TLS: true, Args: []string{"--authentication=delegated", "--admin-listen=:0"},
	})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(proxy.AdminURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(proxy.CA)
	for _, test := range []struct {
		name, scheme, path, token string
		certificate               *tls.Certificate
		want                      int
	}{
		{"a probe", "http", "/readyz", "", nil, 200},
		{"nobody", "https", "/metrics", "", nil, 401},
		{"an unknown token", "https", "/metrics", "nonsense", nil, 401},
		{"a token in the clear", "http", "/metrics", tokenOf("reader"), nil, 403},
		{"a user with the right", "https", "/metrics", tokenOf("reader"), nil, 200},
		{"the same user elsewhere", "https", "/status", tokenOf("reader"), nil, 403},
		{"a user without", "https", "/metrics", tokenOf("nobody"), nil, 403},
		{"an administrator", "https", "/status", w.api.Token, nil, 200},
		{"a certificate", "https", "/metrics", "", w.ca.SignT(t, time.Hour, "carol"), 200},
		{"a certificate without the right", "https", "/metrics", "", w.ca.SignT(t, time.Hour, "dave"), 403},
		{"another authority's certificate", "https", "/metrics", "", w.foreign.SignT(t, time.Hour, "carol"), 401},
	} {
		config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if test.certificate != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return test.certificate, nil }
		}
		transport := &http.Transport{TLSClientConfig: config}
		var code int
		var text []byte
		get := func() int {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, test.scheme+"://127.0.0.1:"+port+test.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Forwarded-For", "192.0.2.1")
			if test.token != "" {
				req.Header.Set("Authorization", "Bearer "+test.token)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			defer resp.Body.Close()
			if text, err = io.ReadAll(resp.Body); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			return resp.StatusCode
		}
		if test.want == http.StatusOK { // the apiserver may take a moment to know a new right
			cluster.Eventually(t, test.name, func() bool { code = get(); return code == test.want })
		} else if code = get(); code != test.want {
			t.Errorf("%s: %d %.200s", test.name, code, text)
		}
		transport.CloseIdleConnections()
	}
}
