package configfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// now is the time of all checks here.
var now = time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC)

// pair returns a certificate and its key. The certificate is valid from a day before now until the
// given time.
func pair(t *testing.T, name string, from, until time.Duration) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(from), NotAfter: now.Add(until),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

// validate checks the files named in a configuration. Each error contains the field, its line and a
// remedy.
func TestFiles(t *testing.T) {
	const day = 24 * time.Hour
	dir := t.TempDir()
	t.Chdir(dir)
	good, goodKey := pair(t, "good", -day, day)
	_, otherKey := pair(t, "other", -day, day)
	expired, expiredKey := pair(t, "expired", -2*day, -day)
	early, earlyKey := pair(t, "early", day, 2*day)
	kubeconfig := func(user string) []byte {
		return fmt.Appendf(nil, `{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}, {name: none, context: {cluster: d, user: u}}],
clusters: [{name: c, cluster: {server: "https://a.example"%s}}], users: [{name: u, user: {%s}}]}`, map[bool]string{true: ", certificate-authority: expired.crt"}[user == "CA"],
			strings.TrimPrefix(user, "CA"))
	}
	for name, content := range map[string][]byte{
		"good.crt": good, "good.key": goodKey, "other.key": otherKey, "expired.crt": expired, "expired.key": expiredKey, "early.crt": early, "early.key": earlyKey,
		"both.crt": append(append([]byte{}, expired...), good...), "chain.crt": append(append([]byte{}, good...), expired...), "text": []byte("text"),
		"encrypted.key": pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}),
		"kubeconfig":    kubeconfig("token: a"), "certificate": kubeconfig("client-certificate: good.crt, client-key: good.key"),
		"wrongkey": kubeconfig("client-certificate: good.crt, client-key: other.key"), "old": kubeconfig("client-certificate: expired.crt, client-key: expired.key"),
		"lost": kubeconfig("client-certificate: lost.crt, client-key: lost.key"), "oldca": kubeconfig("CA"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tls := func(certificate, key string) string {
		return fmt.Sprintf("listen: 0.0.0.0:1\ntls:\n  certFile: %s\n  privateKeyFile: %s\n", certificate, key)
	}
	clients := func(file string) string {
		return tls("good.crt", "good.key") + "authentication:\n  x509: {clientCAFile: " + file + "}\n"
	}
	const head = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"
	for text, want := range map[string][]string{
		tls("good.crt", "good.key"):                                nil,
		tls("lost.crt", "lost.key"):                                {`5: tls.certFile: Invalid value: "lost.crt": there is no such file: `, `6: tls.privateKeyFile: Invalid value: "lost.key": there is no such file: `},
		tls("good.crt", "lost.key"):                                {`6: tls.privateKeyFile: `},
		tls(".", "good.key"):                                       {`5: tls.certFile: Invalid value: ".": the file cannot be read (is a directory)`},
		tls("text", "text"):                                        {`5: tls.certFile: Invalid value: "text": there is no certificate in PEM in it`, `6: tls.privateKeyFile: Invalid value: "text": there is no private key`},
		tls("good.crt", "encrypted.key"):                           {`6: tls.privateKeyFile: Invalid value: "encrypted.key": there is no private key in PEM in it; a key must not be encrypted`},
		tls("good.crt", "other.key"):                               {`6: tls.privateKeyFile: Invalid value: "other.key": the key does not belong to the certificate`},
		tls("expired.crt", "expired.key"):                          {`5: tls.certFile: Invalid value: "expired.crt": the certificate of "CN=expired" expired at 2030-05-31T00:00:00Z: renew it`},
		tls("expired.crt", "good.key"):                             {`5: tls.certFile: `, `6: tls.privateKeyFile: `},
		tls("chain.crt", "good.key"):                               {`5: tls.certFile: Invalid value: "chain.crt": the certificate of "CN=expired" expired`},
		tls("early.crt", "early.key"):                              {`5: tls.certFile: Invalid value: "early.crt": the certificate of "CN=early" is not valid before 2030-06-02T00:00:00Z`},
		clients("good.crt"):                                        nil,
		clients("both.crt"):                                        nil, // an expired CA beside a valid one
		clients("expired.crt"):                                     {`8: authentication.x509.clientCAFile: Invalid value: "expired.crt": the certificate of "CN=expired" expired`},
		clients("lost.crt"):                                        {`8: authentication.x509.clientCAFile: Invalid value: "lost.crt": there is no such file`},
		clients("good.key"):                                        {`8: authentication.x509.clientCAFile: Invalid value: "good.key": there is no CA certificate in PEM`},
		"upstream: {caFile: good.crt}":                             nil,
		"upstream: {caFile: lost.crt}":                             {`3: upstream.caFile: Invalid value: "lost.crt": there is no such file`},
		"upstream: {caFile: expired.crt}":                          {`3: upstream.caFile: Invalid value: "expired.crt": the certificate of "CN=expired" expired`},
		"upstream: {kubeconfig: kubeconfig}":                       nil,
		"upstream: {kubeconfig: certificate, context: a}":          nil,
		"upstream: {kubeconfig: lost}":                             {`3: upstream.kubeconfig: Invalid value: "lost": invalid configuration: [unable to read client-cert `},
		"upstream: {kubeconfig: nowhere}":                          {`3: upstream.kubeconfig: Invalid value: "nowhere": there is no such file`},
		"upstream: {kubeconfig: text}":                             {`3: upstream.kubeconfig: Invalid value: "text": `},
		"upstream:\n  kubeconfig: kubeconfig\n  context: b\n":      {`5: upstream.context: Invalid value: "b": no context "b"; there are: ["a" "none"]`},
		"upstream: {kubeconfig: kubeconfig, contexts: [a, none]}":  {`3: upstream.contexts[1]: Invalid value: "none": context "none": no cluster "d"`},
		"upstream: {kubeconfig: wrongkey}":                         {`3: upstream.kubeconfig: Invalid value: "wrongkey": client-key: the key does not belong`},
		"upstream: {kubeconfig: old}":                              {`3: upstream.kubeconfig: Invalid value: "old": client-certificate: the certificate of "CN=expired" expired`},
		"upstream: {kubeconfig: oldca}":                            {`3: upstream.kubeconfig: Invalid value: "oldca": certificate-authority: the certificate of "CN=expired" expired`},
		"upstream: {kubeconfig: /dev/null}":                        {`3: upstream.kubeconfig: Invalid value: "/dev/null": no contexts in /dev/null`},
		"upstream: {kubeconfig: lost, context: 5}\nlogLevel: loud": {`3: upstream.context: `},
		"upstream: {kubeconfig: nowhere}\nlogLevel: loud":          {`3: upstream.kubeconfig: `, `4: logLevel: `},
	} {
		got := check([]byte(head+text), true, now)
		if len(got) != len(want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s:\n got %s\nwant %s", text, got[i], want[i])
			}
		}
		if strings.Contains(strings.Join(got, ""), "\n") {
			t.Errorf("an error has several lines: %q", got)
		}
	}
	got := check([]byte(head+"upstream: {kubeconfig: lost}\naudit: {policyFile: lost, logPath: text/audit.log}\n"), false, now)
	if len(got) != 0 {
		t.Errorf("without files: %q", got)
	}
}

// Each error is one line, for any content of the file and of the files named in it.
func TestOneLineEach(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("policy", []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: [a]\n- level: [b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		`"x\ny": 1`: 3,
		"audit:\n  policyFile: policy\n  logPath: \"-\"\n": 4,
		"audit:\n  policyFile: lost\n  logPath: \"-\"\n":   4,
		"audit:\n  policyFile: policy\nx":                  5,
	} {
		got := check([]byte("apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"+text), true, now)
		if len(got) != 1 || strings.Contains(got[0], "\n") || !strings.HasPrefix(got[0], fmt.Sprint(want)+": ") {
			t.Errorf("%s: got %q", text, got)
		}
	}
}

// A file that this user may not read is reported as such.
func TestUnreadableFile(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read every file")
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, nil, 0); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("authentication: {mode: delegated, x509: {clientCAFile: %s}}\nlisten: unix:///a\n", file)
	got := check([]byte("apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"+text), true, now)
	if len(got) != 1 || !strings.Contains(got[0], "cannot be read by this user") {
		t.Errorf("got %q", got)
	}
}
