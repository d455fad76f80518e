package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProxyStopReportsDisasters(t *testing.T) {
	for _, disaster := range []string{"WARNING: DATA RACE", "http: panic: boom"} {
		const ready = `echo "watchproxy ready: http://127.0.0.1:8001 (admin http://127.0.0.1:8002)"`
		binary := filepath.Join(t.TempDir(), "watchproxy")
		MustT(t, os.WriteFile(binary, []byte("#!/bin/sh\n"+obedient("echo '"+disaster+"' >&2\n"+ready, 0)), 0o755))
		p, err := StartProxy(t.Context(), ProxyOptions{Binary: binary})
		MustT(t, err)
		if err := p.Close(); err == nil || !strings.Contains(err.Error(), strings.SplitN(disaster, ": ", 2)[1]) {
			t.Errorf("%s: got %v", disaster, err)
		}
	}
}

// obedient returns a script that runs the given commands and exits with the given code on SIGTERM.
func obedient(commands string, code int) string {
	// A trap runs during a wait, but not while a command runs in the foreground.
	return fmt.Sprintf("trap 'kill -9 $!; exit %d' TERM\nsleep 600 >/dev/null 2>&1 &\n%s\nwait\n", code, commands)
}
