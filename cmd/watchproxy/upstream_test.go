package main

import (
	"strings"
	"testing"
)

func TestIsSelf(t *testing.T) {
	for _, test := range []struct {
		server, listen string
		want           bool
	}{
		{"http://127.0.0.1:8001", "127.0.0.1:8001", true},
		{"http://localhost:8001", "127.0.0.1:8001", true},
		{"https://127.0.0.1:6443", "0.0.0.0:6443", true},
		{"https://[::1]:6443", ":6443", true},
		{"https://10.0.0.1:6443", "10.0.0.1:6443", true},
		{"https://127.0.0.1:6443", "10.0.0.1:6443", false},
		{"https://10.0.0.1:6443", "0.0.0.0:6443", false},
		{"http://127.0.0.1:8002", "127.0.0.1:8001", false},
		{"http://127.0.0.1:8001", "127.0.0.1:0", false},
		{"https://a.example:443", "b.example:443", false},
		{"https://a.example:443", ":443", false},
		{"http://127.0.0.1:8001", "unix:///a", false},
	} {
		if got := isSelf(test.server, test.listen); got != test.want {
			t.Errorf("%s, listening on %s: %v", test.server, test.listen, got)
		}
	}
}

// A proxy is never its own upstream.
func TestRestConfigOfItself(t *testing.T) {
	const own = "http://127.0.0.1:8001"
	_, err := restConfig(kubeconfigFor(t, own), "", "127.0.0.1:8001")
	if err == nil || !strings.Contains(err.Error(), "listens on") {
		t.Errorf("got %v", err)
	}
}
