// Package observe starts the audit log and tracing if they are configured.
package observe

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/trace"
)

// lastSpans limits how long the last spans may be sent at shutdown.
const lastSpans = 5 * time.Second

// Observers record the requests of a proxy. Each field may be nil.
type Observers struct {
	Audit  *audit.Auditor
	Tracer *trace.Tracer
	log    *zap.Logger
}

// Start starts the observers. Tracing logs with seldom, because its failures can be frequent.
func Start(ctx context.Context, c *config.ProxyConfiguration, version string, registry prometheus.Registerer, log, seldom *zap.Logger) (o Observers, err error) {
	o.log = log
	if c.Tracing != nil {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { seldom.Warn("spans could not be sent", zap.Error(err)) }))
		if o.Tracer, err = trace.New(ctx, c.Tracing.Configuration(), version); err != nil {
			return o, err
		}
	}
	if a := c.Audit; a != nil {
		if o.Audit, err = audit.New(audit.Options{
			PolicyFile: a.PolicyFile, LogPath: a.LogPath, Mode: audit.Mode(a.LogMode), MaxAge: *a.LogMaxAge, MaxBackups: *a.LogMaxBackups,
			MaxSize: *a.LogMaxSize, Compress: a.LogCompress, Unauthenticated: c.Authentication.Mode == config.NoAuthentication,
		}); err != nil {
			o.Stop()
			return o, fmt.Errorf("audit.%w", err)
		}
		audit.Register(registry)
	}
	return o, nil
}

// Stop writes the last events and sends the last spans. It must be called after the last request.
func (o Observers) Stop() {
	if o.Audit != nil {
		if err := o.Audit.Close(); err != nil {
			o.log.Error("the audit log could not be closed", zap.Error(err))
		}
	}
	if o.Tracer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
		defer cancel()
		if err := o.Tracer.Close(ctx); err != nil {
			o.log.Warn("the last spans could not be sent", zap.Error(err))
		}
	}
}
