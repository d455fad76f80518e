package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// The events of all requests are in the audit log when it ends. If a log cannot be opened, that is an
// error of its field.
func TestAuditing(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.Audit = &config.Audit{PolicyFile: filepath.Join(dir, "policy.yaml"), LogPath: filepath.Join(dir, "audit.log")}
	c.SetDefaults()
	if err := os.WriteFile(c.Audit.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := func() (*audit.Auditor, func(), error) { return auditing(c, prometheus.NewRegistry(), zap.NewNop()) }
	auditor, stop, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	const requests = 100
	for range requests {
		req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/pods", Path: "/api/v1/pods", Header: http.Header{}}
		auditor.Answered(req, exchange.NewResponse(http.StatusOK, exchange.FromCache), time.Now(), false)
	}
	stop()
	if text, err := os.ReadFile(c.Audit.LogPath); err != nil || bytes.Count(text, []byte("\n")) != 2*requests {
		t.Errorf("%d lines, %v", bytes.Count(text, []byte("\n")), err)
	}
	c.Audit.LogPath = filepath.Join(c.Audit.PolicyFile, "audit.log")
	if _, _, err := begin(); err == nil || !strings.HasPrefix(err.Error(), "audit.logPath: ") {
		t.Error(err)
	}
}
