package main

import (
	"context"
	"fmt"
	"sync"
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
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// secureLimit bounds the time of the requests to upstream that must succeed before clients can be
// authenticated.
const secureLimit = 30 * time.Second

// secure sets the options for authentication and TLS. It reloads certificates and CAs when they
// change, until stop is called. wait waits for the goroutines that do so.
func secure(ctx context.Context, c *config.ProxyConfiguration, behind *apiserver, options *proxy.Options,
	registry prometheus.Registerer, log *zap.Logger,
) (wait, stop func(), err error) {
	klog.SetLogger(zapr.NewLogger(log.WithOptions(zap.IncreaseLevel(zap.WarnLevel), zap.WrapCore(seldom))))
	var running sync.WaitGroup
	following, cease := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			cease()
			running.Wait()
		}
	}()
	var ca *access.ClientCA
	if c.Authentication.Mode == config.Delegated {
		rc, err := behind.config()
		if err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, secureLimit)
		defer cancel()
		if err := access.CheckRights(ctx, rc); err != nil {
			return nil, nil, fmt.Errorf("authentication: %w", err)
		}
		if ca, err = clientCA(ctx, c.Authentication.X509.ClientCAFile, rc, log); err != nil {
			return nil, nil, err
		}
		if options.Access, err = access.New(rc, ca, access.Options{
			Anonymous: c.Authentication.Anonymous.Enabled,
			TokenTTL:  c.Authentication.Webhook.CacheTTL.Duration,
			AllowTTL:  c.Authorization.Webhook.CacheAuthorizedTTL.Duration,
			DenyTTL:   c.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		}, registry); err != nil {
			return nil, nil, fmt.Errorf("authentication: %w", err)
		}
	}
	if c.TLS != nil {
		certificates, err := access.NewCertificates(c.TLS.CertFile, c.TLS.PrivateKeyFile, ca)
		if err != nil {
			return nil, nil, fmt.Errorf("tls: %w", err)
		}
		running.Go(func() { certificates.Run(following) })
		options.TLS = certificates.Config()
	}
	if ca != nil { // after the certificates have registered as its listeners
		running.Go(func() { ca.Run(following) })
		ctx, cancel := context.WithTimeout(ctx, secureLimit)
		defer cancel()
		if err := ca.Wait(ctx); err != nil {
			return nil, nil, err
		}
	}
	return running.Wait, cease, nil
}

// seldom lets one line of each message pass in 10 s, because the library logs each request that it
// cannot review.
func seldom(core zapcore.Core) zapcore.Core {
	const while, first, thereafter = 10 * time.Second, 1, 0
	return zapcore.NewSamplerWithOptions(core, while, first, thereafter)
}

func clientCA(ctx context.Context, file string, rc *rest.Config, log *zap.Logger) (*access.ClientCA, error) {
	if file == "" {
		return access.ClientCAFromCluster(ctx, rc, log)
	}
	ca, err := access.ClientCAFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("authentication.x509.clientCAFile: %w", err)
	}
	return ca, nil
}

func limits(l config.Limits) exchange.Limits {
	return exchange.Limits{
		HeaderBytes:     int(l.MaxHeaderBytes.Value()),
		URIBytes:        int(l.MaxURIBytes.Value()),
		BodyBytes:       l.MaxRequestBodyBytes.Value(),
		Read:            l.ReadTimeout.Duration,
		Write:           l.WriteTimeout.Duration,
		Idle:            l.IdleTimeout.Duration,
		Connections:     *l.MaxConnections,
		UserConnections: *l.MaxConnectionsPerIdentity,
		UserWatches:     *l.MaxWatchesPerIdentity,
		Forwards:        *l.MaxForwardsInFlight,
		Descriptors:     clientDescriptors(),
	}
}
