package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeProxy returns the path of an executable script.
func fakeProxy(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "watchproxy")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

const fakeReady = `echo "watchproxy ready: http://127.0.0.1:8001 (admin http://127.0.0.1:8002)"`

func TestProxyStart(t *testing.T) {
	p := ProxyT(t, ProxyOptions{
		Binary:     fakeProxy(t, obedient(`echo "$@" >&2; `+fakeReady, 0)),
		Kubeconfig: "/some/kubeconfig",
		Args:       []string{"--config", "/some/config"},
	})
	if p.URL != "http://127.0.0.1:8001" || p.AdminURL != "http://127.0.0.1:8002" {
		t.Errorf("it is at %s, admin %s", p.URL, p.AdminURL)
	}
	const args = "serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --kubeconfig /some/kubeconfig --config /some/config\n"
	if !strings.HasPrefix(p.Log(), args) {
		t.Errorf("log %q does not begin with the arguments", p.Log())
	}
}

func TestProxyStartRefusesAnotherAnnouncement(t *testing.T) {
	binary := fakeProxy(t, `echo "watchproxy ready: soon"; exec sleep 600`)
	if _, err := StartProxy(t.Context(), ProxyOptions{Binary: binary}); err == nil || !strings.Contains(err.Error(), `"soon"`) {
		t.Errorf("got %v", err)
	}
}

func TestProxyStopReportsDisasters(t *testing.T) {
	for _, disaster := range []string{"WARNING: DATA RACE", "http: panic: boom"} {
		p, err := StartProxy(t.Context(), ProxyOptions{Binary: fakeProxy(t, obedient("echo '"+disaster+"' >&2\n"+fakeReady, 0))})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err == nil || !strings.Contains(err.Error(), strings.SplitN(disaster, ": ", 2)[1]) {
			t.Errorf("%s: got %v", disaster, err)
		}
	}
}
