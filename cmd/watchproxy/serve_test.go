package main

import (
	"strings"
	"testing"
)

// Flags take precedence over the file. A sidecar refuses a certificate that it does not make.
func TestFlagsAndFile(t *testing.T) {
	const file = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n" +
		"listen: 127.0.0.1:1\nlogLevel: error\nupstream: {kubeconfig: a, context: b}\n"
	f := serveFlags{listen: "127.0.0.1:2", context: "c"}
	c, err := f.configuration([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:2" || c.LogLevel != "error" || c.Upstream.Kubeconfig != "a" || c.Upstream.Context != "c" {
		t.Errorf("%+v", c)
	}
	sidecar := serveFlags{sidecar: true}
	if c, err := sidecar.configuration(nil); err != nil || c.Listen != sidecarListen || c.TLS.Sidecar == nil {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = sidecar.configuration([]byte(file + "tls: {certFile: a, privateKeyFile: b}\n"))
	if err == nil || !strings.Contains(err.Error(), "a sidecar makes its own certificate") {
		t.Error(err)
	}
}
