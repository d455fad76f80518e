package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProxyStopReportsDisasters(t *testing.T) {
	for _, disaster := range []string{"WARNING: DATA RACE", "http: panic: boom"} {
		const ready = `echo "watchproxy ready: http://127.0.0.1:8001 (admin http://127.0.0.1:8002)"`
		binary := filepath.Join(t.TempDir(), "watchproxy")
		if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+obedient("echo '"+disaster+"' >&2\n"+ready, 0)), 0o755); err != nil {
			t.Fatal(err)
		}
		p, err := StartProxy(t.Context(), ProxyOptions{Binary: binary})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err == nil || !strings.Contains(err.Error(), strings.SplitN(disaster, ": ", 2)[1]) {
			t.Errorf("%s: got %v", disaster, err)
		}
	}
}
