package access

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// The metrics show the expiry of three certificates: the listener's, the first of several client
// certificates, and a credential plugin's. They follow renewed files.
func TestExpiries(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	// The helper makes certificates that became valid an hour ago.
	write := func(validFor time.Duration) (expires int64) {
		t.Helper()
		text, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: "localhost", MaxAge: validFor + time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string][]byte{certFile: text, keyFile: key} {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all, err := cert.ParseCertsPEM(text)
		if err != nil {
			t.Fatal(err)
		}
		return all[0].NotAfter.Unix()
	}
	hour := write(time.Hour)
	pair, err := PairFromFiles(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := NewCertificates(pair, nil)
	if err != nil {
		t.Fatal(err)
	}
	long, _, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: "client", MaxAge: 101 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&Expiries{Serving: serving, Upstream: []*rest.Config{
		{TLSClientConfig: rest.TLSClientConfig{CertData: long}},
		{TLSClientConfig: rest.TLSClientConfig{CertFile: certFile}},
		{},
	}})
	expect := func(want map[string]int64) {
		t.Helper()
		families, err := registry.Gather()
		got := map[string]int64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				of := "serving"
				for _, l := range m.GetLabel() {
					of = l.GetValue()
				}
				got[of] = int64(m.GetGauge().GetValue())
			}
		}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, want %v: %v", got, want, err)
		}
	}
	expect(map[string]int64{"serving": hour, "kubeconfig": hour})
	days := write(50 * time.Hour)
	if err := serving.pair.(dynamiccertificates.ControllerRunner).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	plugin := time.Now().Add(3 * time.Hour)
	execExpiry.Set(&plugin)
	defer execExpiry.Set(nil)
	expect(map[string]int64{"serving": days, "kubeconfig": days, "exec": plugin.Unix()})
	if n := testutil.CollectAndCount(&Expiries{}); n != 1 { // exec
		t.Errorf("without certificates there are %d metrics", n)
	}
}
