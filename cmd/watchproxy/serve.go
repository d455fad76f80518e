package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy"
	"github.com/watchproxy/watchproxy/proxy/admin"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// serveFlags are the flags of serve. A flag that is set takes precedence over the file.
type serveFlags struct {
	config, kubeconfig, context, listen, adminListen, logLevel string
	certFile, privateKeyFile, clientCAFile, authentication     string
	goawayChance                                               float64
}

func newServe() *cobra.Command {
	var f serveFlags
	d := config.Default()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve clients from caches of an apiserver",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asked := hangups()
			known, _ := os.ReadFile(f.config) // before the configuration is loaded, so that no later change is missed
			c, err := f.configuration()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c, &reloader{file: f.config, known: known, read: f.configuration, hangups: asked})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "configuration `FILE` (see 'watchproxy config defaults')")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the upstream apiserver (default: the pod's service account, else $KUBECONFIG or ~/.kube/config)")
	flags.StringVar(&f.context, "context", "", "kubeconfig context `NAME` (default: the current context)")
	flags.StringVar(&f.listen, "listen", "", "`ADDRESS` for clients: host:port or unix:///path (default "+d.Listen+")")
	flags.StringVar(&f.authentication, "authentication", "", "`MODE`: delegated (to the apiserver) or none (default: none on loopback and Unix sockets, delegated elsewhere)")
	flags.StringVar(&f.clientCAFile, "client-ca-file", "", "PEM `FILE` with the CAs of client certificates (default: the apiserver's own)")
	flags.StringVar(&f.certFile, "tls-cert-file", "", "PEM `FILE` with the certificate for TLS, HTTP/1.1 and HTTP/2 (default: plain HTTP/1.1)")
	flags.StringVar(&f.privateKeyFile, "tls-private-key-file", "", "PEM `FILE` with the certificate's private key")
	flags.Float64Var(&f.goawayChance, "goaway-chance", 0, "`PROBABILITY`, at most 0.02, that an HTTP/2 request moves its client to another connection")
	flags.StringVar(&f.adminListen, "admin-listen", "", "`ADDRESS` of /metrics, /livez, /readyz and /status (default "+d.AdminListen+")")
	flags.StringVar(&f.logLevel, "log-level", "", "`LEVEL`: debug, info, warn or error (default "+d.LogLevel+")")
	return cmd
}

// configuration merges the flags, the file, if any, and the defaults, in this order of precedence.
func (f *serveFlags) configuration() (*config.ProxyConfiguration, error) {
	c := &config.ProxyConfiguration{APIVersion: config.APIVersion, Kind: config.Kind}
	if f.config != "" {
		var err error
		if c, err = config.Load(f.config); err != nil {
			return nil, err
		}
	}
	for _, o := range []struct {
		field *string
		flag  string
	}{
		{&c.Upstream.Kubeconfig, f.kubeconfig},
		{&c.Upstream.Context, f.context},
		{&c.Listen, f.listen},
		{&c.AdminListen, f.adminListen},
		{&c.LogLevel, f.logLevel},
		{&c.Authentication.X509.ClientCAFile, f.clientCAFile},
	} {
		if o.flag != "" {
			*o.field = o.flag
		}
	}
	if f.authentication != "" {
		c.Authentication.Mode = config.AuthenticationMode(f.authentication)
	}
	if f.certFile != "" || f.privateKeyFile != "" {
		c.TLS = &config.TLS{CertFile: f.certFile, PrivateKeyFile: f.privateKeyFile}
	}
	if f.goawayChance != 0 {
		c.GoawayChance = f.goawayChance
	}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// serve serves until ctx ends. reloads applies changes of the configuration meanwhile.
func serve(ctx context.Context, c *config.ProxyConfiguration, reloads *reloader) error {
	log, level, err := newLogger(c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	defer log.Sync() //nolint:errcheck // standard error cannot always be synced

	memory := &budget{limit: tuneMemory(c.MemoryBudget, log), fixedGC: os.Getenv("GOGC") != "", log: log}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildOf().metric())
	feedMetrics := upstream.NewMetrics(registry)
	behind, err := connect(ctx, c.Upstream, c.Listen, streamWindow(memory.limit), feedMetrics, log)
	if err != nil {
		return err
	}
	forwards, err := forward.New(behind.forwarding(), behind.transport)
	if err != nil {
		return err
	}
	client, err := behind.client(feedMetrics)
	if err != nil {
		return err
	}
	feeds := upstream.NewFeeds(client, behind.servers, feedMetrics, feedOptions(c.Cache), log)
	defer feeds.Stop()
	registry.MustRegister(feeds)
	save, err := persist(ctx, c.Cache.Persistence, feeds, client, feedMetrics, log)
	if err != nil {
		return err
	}
	defer save()

	derived := derived.New(c.Cache.Derived.MaxBytes.Value(), registry)
	defer derived.Close()
	memory.feeds, memory.derived = feeds, derived
	memory.derivedMax.Store(c.Cache.Derived.MaxBytes.Value())
	memory.register(registry)
	defer inBackground(ctx, memory.run)()
	options := serverOptions(c)
	options.Workspace = memory.workspace()
	_, options.AnyHost = config.UnixSocket(c.Listen)
	secured, stop, err := secure(ctx, c, behind, &options, registry, log)
	if err != nil {
		return err
	}
	defer secured()
	defer stop()
	served := metrics.New(registry)
	server := proxy.NewServer(opener{feeds}, forwards, derived, options, served, log)
	reloads.running, reloads.log, reloads.metrics = c, log, newReloadMetrics(registry)
	reloads.apply = func(c *config.ProxyConfiguration) {
		level.SetLevel(logLevel(c.LogLevel))
		memory.derivedMax.Store(c.Cache.Derived.MaxBytes.Value())
		derived.SetLimit(c.Cache.Derived.MaxBytes.Value())
		feeds.SetOptions(feedOptions(c.Cache))
		server.SetOptions(serverOptions(c))
	}
	defer inBackground(ctx, reloads.run)()
	began := time.Now()
	admin := admin.New(registry, served, func() (any, error) {
		return status.Of(buildOf().Version, behind.host(), began, feeds.Status(), served.Recent(), registry)
	}, c.Profiling)
	return run(ctx, c, server, admin, log)
}

// run listens, prints the addresses, and serves until ctx ends and everything has drained.
func run(ctx context.Context, c *config.ProxyConfiguration, server *proxy.Server, admin *admin.Admin, log *zap.Logger) error {
	var lc net.ListenConfig
	clients, err := listen(ctx, c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	operators, err := lc.Listen(ctx, "tcp", c.AdminListen)
	if err != nil {
		return errors.Join(fmt.Errorf("adminListen: %w", err), clients.Close())
	}
	adminServer := admin.Server()
	adminFailed := make(chan error, 1)
	adminServer.IdleTimeout = adminIdle
	go func() { adminFailed <- adminServer.Serve(forOperators(operators)) }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { admin.SetReady(false) })
	admin.SetReady(true)
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	address := scheme + "://" + clients.Addr().String()
	if _, ok := config.UnixSocket(c.Listen); ok {
		address = c.Listen
	}
	fmt.Printf("watchproxy ready: %s (admin http://%s)\n", address, operators.Addr())
	err = server.Serve(ctx, clients)

	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	err = errors.Join(err, adminServer.Shutdown(closing))
	if failed := <-adminFailed; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve adminListen: %w", failed))
	}
	log.Info("stopped")
	return err
}

func serverOptions(c *config.ProxyConfiguration) proxy.Options {
	return proxy.Options{
		Options: read.Options{
			SyncTimeout:  c.Cache.SyncTimeout.Duration,
			FailOnLoss:   c.Cache.OnUpstreamLoss == config.Fail,
			MaxStaleness: c.Cache.MaxStaleness.Duration,
			Recheck:      c.Authorization.WatchRecheckInterval.Duration,
		},
		Drain:        c.Drain.Duration,
		Stall:        c.Cache.Log.MaxAge.Duration,
		GoawayChance: c.GoawayChance,
		Limits:       limits(c.Limits),
		AccessLog:    c.AccessLogSampling,
	}
}

func feedOptions(c config.Cache) feed.Options {
	o := feed.Options{
		Limits: watchcache.Limits{
			Age:    c.Log.MaxAge.Duration,
			Events: *c.Log.MaxEvents,
			Bytes:  c.Log.MaxBytes.Value(),
		},
		IdleTimeout: c.IdleTimeout.Duration,
		SelfCheck:   c.SelfCheckInterval.Duration,
		MaxProbes:   *c.ConsistentReads.MaxProbesPerSecond,
		Ledger:      *c.ConsistentReads.Ledger,
		Direct:      *c.ConsistentReads.ForwardIfSooner,
		Resources:   map[schema.GroupResource]feed.ResourceOptions{},
	}
	for _, r := range c.Exclude {
		o.Excluded = append(o.Excluded, schema.ParseGroupResource(r))
	}
	for _, r := range c.Resources {
		o.Resources[schema.ParseGroupResource(r.Name)] = feed.ResourceOptions{
			ForwardConsistent: r.ConsistentReads == config.Forward,
			Aggregated:        r.Aggregated,
			MaxAge:            r.MaxAge.Duration,
		}
	}
	return o
}

// inBackground runs do until stop is called. stop waits until do has returned. A signal does not
// end do, because the proxy drains first.
func inBackground(ctx context.Context, do func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { do(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// newLogger returns a logger whose level can be changed.
func newLogger(level string, format config.LogFormat) (*zap.Logger, zap.AtomicLevel, error) {
	l, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, l, fmt.Errorf("logLevel: %w", err)
	}
	settings := zap.NewProductionEncoderConfig()
	settings.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewJSONEncoder(settings)
	if format == config.Console {
		encoder = zapcore.NewConsoleEncoder(settings)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), l)), l, nil
}

// opener adapts Feeds to the server's interface.
type opener struct{ *upstream.Feeds }

// Open implements proxy.Feeds.
func (o opener) Open(ctx context.Context, gvr schema.GroupVersionResource, encoding object.Encoding, since uint64) (read.Feed, error) {
	return o.Feeds.Open(ctx, gvr, encoding, since)
}
