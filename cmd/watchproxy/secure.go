package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/zapr"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy"
	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/admin"
	"github.com/watchproxy/watchproxy/proxy/issuer"
)

// secureLimit limits the time of upstream requests without which clients cannot be authenticated.
const secureLimit = 30 * time.Second

type security struct {
	clients   *proxy.Options
	operators *admin.Options
	registry  prometheus.Registerer
}

// set sets the options for authentication and TLS. It reloads certificates and CAs when they
// change, until stop is called, which waits for the goroutines that reload them.
func (s *security) set(
	ctx context.Context, c *config.ProxyConfiguration, backend *apiserver, log *zap.Logger,
) (stop func(), err error) {
	options, operators := s.clients, s.operators
	klog.SetLogger(zapr.NewLogger(libraryLog(log)))
	var follow []func(context.Context)
	var ca *access.ClientCA
	expiring := &access.Expiries{Upstream: backend.configs}
	a := c.AdminAuthentication
	operators.Everybody = a.Mode == config.NoAuthentication
	operators.Open, operators.Restricted = a.AlwaysAllowPaths, a.RestrictLoopback
	ctx, cancel := context.WithTimeout(ctx, secureLimit)
	defer cancel()
	if field := reviewing(c); field != "" {
		rc := backend.config()
		if err := access.CheckRights(ctx, rc); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		if ca, err = clientCA(ctx, c.Authentication.X509.ClientCAFile, rc, log); err != nil {
			return nil, err
		}
		reviews, err := access.New(rc, ca, access.Options{
			Anonymous: c.Authentication.Anonymous.Enabled,
			TokenTTL:  c.Authentication.Webhook.CacheTTL.Duration,
			AllowTTL:  c.Authorization.Webhook.CacheAuthorizedTTL.Duration,
			DenyTTL:   c.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		}, s.registry)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		if c.Authentication.Mode == config.Delegated {
			options.Access = reviews
		}
		if c.AdminReviews() {
			operators.Access = reviews
		}
	}
	if c.TLS != nil {
		pair, err := pair(ctx, c, backend, log)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		certificates, err := access.NewCertificates(pair, ca)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		follow = append(follow, certificates.Run)
		options.TLS, expiring.Serving = certificates.Config(), certificates
		if c.AdminTLS() {
			operators.TLS = options.TLS
		}
	}
	s.registry.MustRegister(expiring)
	if ca == nil {
		return inBackground(ctx, follow...), nil
	}
	stop = inBackground(ctx, append(follow, ca.Run)...) // after the certificates listen to it
	if err := ca.Wait(ctx); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// reviewing returns the field that requires reviews of credentials by the apiserver, or "".
func reviewing(c *config.ProxyConfiguration) (field string) {
	switch {
	case c.Authentication.Mode == config.Delegated:
		return "authentication"
	case c.AdminReviews():
		return "adminAuthentication"
	}
	return ""
}

func pair(
	ctx context.Context, c *config.ProxyConfiguration, backend *apiserver, log *zap.Logger,
) (access.Pair, error) {
	switch {
	case c.TLS.Sidecar != nil:
		return backend.sidecar(c.Listen, log)
	case c.TLS.Generated != nil:
		return issuer.New(ctx, backend.config(), issuer.Options(*c.TLS.Generated), log)
	}
	return access.PairFromFiles(c.TLS.CertFile, c.TLS.PrivateKeyFile)
}

// libraryLog returns the libraries' log, from warnings on. Klog's warnings arrive as information.
func libraryLog(log *zap.Logger) *zap.Logger {
	important := zap.LevelEnablerFunc(func(l zapcore.Level) bool {
		return l >= zap.WarnLevel && log.Core().Enabled(l)
	})
	return log.WithOptions(zap.IncreaseLevel(important), zap.WrapCore(seldom))
}

// seldom logs each message at most once in 10 s. It is needed because the library logs each request
// that it cannot review, and each event that the audit log has lost.
func seldom(core zapcore.Core) zapcore.Core {
	const while, first, thereafter = 10 * time.Second, 1, 0
	return shortLines{zapcore.NewSamplerWithOptions(core, while, first, thereafter)}
}

// shortLines logs only the first line of a message: the others have bytes from clients. It cuts
// texts, and drops values other than texts and numbers: they can be a request's whole query.
type shortLines struct{ zapcore.Core }

// textMost is the maximum length of a text from a library in the log, in bytes.
const textMost = 512

func (c shortLines) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	e.Message, _, _ = strings.Cut(e.Message, "\n")
	e.Message = e.Message[:min(len(e.Message), textMost)]
	if c.Core.Check(e, nil) == nil {
		return to
	}
	return to.AddCore(e, c)
}

func (c shortLines) Write(e zapcore.Entry, fields []zapcore.Field) error {
	return c.Core.Write(e, short(fields))
}

func (c shortLines) With(fields []zapcore.Field) zapcore.Core {
	return shortLines{c.Core.With(short(fields))}
}

func short(fields []zapcore.Field) []zapcore.Field {
	kept := make([]zapcore.Field, 0, len(fields))
	for _, f := range fields {
		switch f.Type {
		case zapcore.ErrorType:
			f = zap.String(f.Key, f.Interface.(error).Error())
			fallthrough
		case zapcore.StringType:
			f.String = f.String[:min(len(f.String), textMost)]
		case zapcore.BoolType, zapcore.DurationType, zapcore.Int64Type, zapcore.Int32Type,
			zapcore.Uint64Type, zapcore.Uint32Type, zapcore.Float64Type:
		default:
			continue
		}
		kept = append(kept, f)
	}
	return kept
}

func clientCA(
	ctx context.Context, file string, rc *rest.Config, log *zap.Logger,
) (*access.ClientCA, error) {
	if file == "" {
		return access.ClientCAFromCluster(ctx, rc, log)
	}
	ca, err := access.ClientCAFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("authentication.x509.clientCAFile: %w", err)
	}
	return ca, nil
}
