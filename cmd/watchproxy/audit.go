package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/audit"
)

// auditing starts the audit log; auditor is nil without one. stop must follow the last request.
func auditing(
	c *config.ProxyConfiguration, registry prometheus.Registerer, log *zap.Logger,
) (auditor *audit.Auditor, stop func(), err error) {
	a := c.Audit
	if a == nil {
		return nil, func() {}, nil
	}
	auditor, err = audit.New(audit.Options{
		PolicyFile: a.PolicyFile, LogPath: a.LogPath, Strict: a.LogMode == config.BlockingStrict,
		MaxSize: *a.LogMaxSize, MaxBackups: *a.LogMaxBackups, MaxAge: *a.LogMaxAge,
		Unauthenticated: c.Authentication.Mode == config.NoAuthentication,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("audit.%w", err)
	}
	audit.Register(registry)
	return auditor, func() {
		if err := auditor.Close(); err != nil {
			log.Error("the audit log could not be closed", zap.Error(err))
		}
	}, nil
}
