package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	stdlog "log"
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
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy"
	"github.com/watchproxy/watchproxy/proxy/admin"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

type serveFlags struct {
	config, kubeconfig, context, listen, adminListen, logLevel string
	certFile, privateKeyFile, authentication                   string
	sidecar                                                    bool
}

func newServe() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "serve",
		Short: "Serve clients from caches of an apiserver",
	}, config.Default().Listen, false)
}

const sidecarListen = "127.0.0.1:6443"

func newSidecar() *cobra.Command {
	cmd := serving(&cobra.Command{
		Use:   "sidecar",
		Short: "Serve the other containers of a pod, which use their in-cluster configuration",
		Long: `sidecar is serve with other defaults: it listens on 127.0.0.1:6443 with TLS, makes
the certificate itself, and publishes its CA and the pod's token in a volume (see
tls.sidecar in 'watchproxy config schema'). Applications that mount this volume at
/var/run/secrets/kubernetes.io/serviceaccount and have KUBERNETES_SERVICE_HOST=127.0.0.1
and KUBERNETES_SERVICE_PORT=6443 use the sidecar as their apiserver.`,
	}, sidecarListen, true)
	for _, own := range []string{"tls-cert-file", "tls-private-key-file"} {
		cmd.Flags().Lookup(own).Hidden = true // it makes its own certificate
	}
	return cmd
}

// serving completes a command that serves clients. listen is its default address.
func serving(cmd *cobra.Command, listen string, sidecar bool) *cobra.Command {
	f := serveFlags{sidecar: sidecar}
	d := config.Default()
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reloads := &reloader{parse: f.configuration, hangups: hangups()}
		if f.config != "" {
			text, err := os.ReadFile(f.config)
			if err != nil {
				return fmt.Errorf("read configuration: %w", err)
			}
			reloads.known = text
			if info, err := os.Stat(f.config); err != nil || info.Mode().IsRegular() {
				reloads.file = f.config // not a pipe, which cannot be read again
			}
		}
		c, err := f.configuration(reloads.known)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), c, reloads)
	}
	flag := func(to *string, name, usage string) { cmd.Flags().StringVar(to, name, "", usage) }
	flag(&f.config, "config", "configuration `FILE` (see 'watchproxy config defaults')")
	flag(&f.kubeconfig, "kubeconfig", "kubeconfig `FILE` of the upstream apiserver "+
		"(default: the pod's service account, else $KUBECONFIG or ~/.kube/config)")
	flag(&f.context, "context", "kubeconfig context `NAME` (default: the current context)")
	flag(&f.listen, "listen", "`ADDRESS` for clients: host:port (default "+listen+")")
	flag(&f.authentication, "authentication", "`MODE`: delegated (to the apiserver) or none "+
		"(default: none on loopback, delegated elsewhere)")
	flag(&f.certFile, "tls-cert-file", "PEM `FILE` with the certificate for TLS, HTTP/1.1 and "+
		"HTTP/2 (default: plain HTTP/1.1)")
	flag(&f.privateKeyFile, "tls-private-key-file", "PEM `FILE` with the certificate's private key")
	flag(&f.adminListen, "admin-listen", "`ADDRESS` of /metrics, /livez, /readyz, /status and "+
		"/debug (default "+d.AdminListen+")")
	flag(&f.logLevel, "log-level", "`LEVEL`: debug, info, warn or error (default "+d.LogLevel+")")
	return cmd
}

// configuration merges the flags, the file's text and the defaults, in this order of precedence.
func (f *serveFlags) configuration(text []byte) (*config.ProxyConfiguration, error) {
	c, _, err := config.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", f.config, err)
	}
	c.Upstream.Kubeconfig = cmp.Or(f.kubeconfig, c.Upstream.Kubeconfig)
	c.Upstream.Context = cmp.Or(f.context, c.Upstream.Context)
	c.Listen = cmp.Or(f.listen, c.Listen)
	c.AdminListen = cmp.Or(f.adminListen, c.AdminListen)
	c.LogLevel = cmp.Or(f.logLevel, c.LogLevel)
	mode := config.AuthenticationMode(f.authentication)
	c.Authentication.Mode = cmp.Or(mode, c.Authentication.Mode)
	if f.certFile != "" || f.privateKeyFile != "" {
		c.TLS = &config.TLS{CertFile: f.certFile, PrivateKeyFile: f.privateKeyFile}
	}
	if f.sidecar {
		c.Listen = cmp.Or(c.Listen, sidecarListen)
		if c.TLS == nil {
			c.TLS = &config.TLS{Sidecar: &config.Sidecar{}}
		}
		if c.TLS.Sidecar == nil {
			return nil, errors.New("configuration: tls: a sidecar makes its own certificate: " +
				"leave out certFile, privateKeyFile and generated, or use watchproxy serve")
		}
	}
	c.Cache.Expand(os.Getenv)
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

func serve(ctx context.Context, c *config.ProxyConfiguration, reloads *reloader) error {
	log, level, err := newLogger(c.LogLevel)
	if err != nil {
		return err
	}
	defer log.Sync() //nolint:errcheck // standard error cannot always be synced

	budget := newBudget(c.MemoryBudget, log)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildOf().metric())
	feedMetrics := upstream.NewMetrics(registry)
	backend, err := connect(ctx, c, streamWindow(budget.Limit), feedMetrics, log)
	if err != nil {
		return err
	}
	forwards, err := forward.New(backend.forwarding(), backend.transport)
	if err != nil {
		return err
	}
	client := backend.client(feedMetrics)
	feeds := upstream.NewFeeds(client, backend.servers, feedMetrics,
		feedOptions(c.Cache, backend.namespace), log)
	defer feeds.Stop()
	registry.MustRegister(feeds)
	derived := derived.New(derivedMax, registry)
	defer derived.Close()
	budget.Of(feeds, derived)
	budget.Register(registry)
	defer inBackground(ctx, budget.Run)()
	if most := budget.Connections(); most > 0 && most < *c.Limits.MaxConnections {
		log.Info("memoryBudget has room for fewer connections than limits.maxConnections",
			zap.Int("maxConnections", *c.Limits.MaxConnections), zap.Int("connections", most))
	}
	options := serverOptions(c, budget.Connections())
	options.Memory, options.Strangers = budget.Users(), budget.Strangers()
	options.Window, options.OwnToken = int64(backend.window), backend.ownToken()
	options.NeedsToken = c.TLS != nil && c.TLS.Sidecar != nil
	options.AnyHost = options.NeedsToken
	var operators admin.Options
	secured := security{clients: &options, operators: &operators, registry: registry}
	stop, err := secured.set(ctx, c, backend, log)
	if err != nil {
		return err
	}
	defer stop()
	auditor, closeLog, err := auditing(c, registry, log)
	if err != nil {
		return err
	}
	defer closeLog()
	options.Audit, options.Views = auditor, viewsOf(c.Views)
	served := metrics.New(registry)
	fields := newViewFields(c.Views, log)
	defer inBackground(ctx, func(ctx context.Context) { fields.run(ctx, feeds.Status) })()
	server := proxy.NewServer(proxy.Parts{
		Feeds: opener{feeds}, Forwards: forwards, Derived: derived, Metrics: served, Log: log,
	}, options)
	began := time.Now()
	operators.Status = func(figures prometheus.Gatherer) (any, error) {
		report, err := status.Of(feeds.Status(), served.Recent(), figures)
		if err != nil {
			return nil, err
		}
		report.Version, report.Upstream = buildOf().Version, backend.host()
		report.UptimeSeconds = time.Since(began).Seconds()
		report.UnfoundFields = *fields.unfound.Load()
		return report, nil
	}
	warm := feeds.Warm(warmFeeds(c.Cache))
	operators.Ready = []healthz.HealthChecker{
		healthz.NamedCheck("caches", func(*http.Request) error { return warm.Err() }),
		healthz.NamedCheck("credentials",
			func(*http.Request) error { return backend.servers.Credentials() }),
	}
	admin := admin.New(registry, operators)
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "watchproxy_connections", Help: "Open connections of clients.",
	}, func() float64 { return float64(server.Connections()) }))
	reloads.running, reloads.log, reloads.refused = c, log, newRefusedGauge(registry)
	reloads.apply = func(c *config.ProxyConfiguration) {
		level.SetLevel(logLevel(c.LogLevel))
		feeds.SetOptions(feedOptions(c.Cache, backend.namespace))
		server.SetOptions(serverOptions(c, budget.Connections()))
	}
	defer inBackground(ctx, reloads.run)()
	return run(ctx, c, server, admin, log)
}

// run listens, prints the addresses, and serves until ctx ends and the proxy has drained.
func run(
	ctx context.Context, c *config.ProxyConfiguration, server *proxy.Server, of *admin.Admin,
	log *zap.Logger,
) error {
	clients, err := listen(ctx, c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	operators, err := listen(ctx, c.AdminListen)
	if err != nil {
		return errors.Join(fmt.Errorf("adminListen: %w", err), clients.Close())
	}
	adminServer := of.Server()
	adminFailed := make(chan error, 1)
	adminServer.IdleTimeout = adminIdle
	limited := log.WithOptions(zap.WrapCore(seldom))
	adminServer.ErrorLog = stdlog.New(connectionErrors{limited}, "", 0)
	go func() { adminFailed <- adminServer.Serve(of.Listener(operators)) }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	of.Ready()
	context.AfterFunc(ctx, of.Drain)
	// Errors before this line are printed for the user of the command instead of logged.
	log.Info("starting", zap.Reflect("build", buildOf()), zap.Any("configuration", c))
	fmt.Printf("watchproxy ready: %s://%s (admin http://%s)\n", scheme, clients.Addr(),
		operators.Addr())
	err = server.Serve(ctx, clients)

	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	if adminServer.Shutdown(closing) != nil { // a profile takes longer
		_ = adminServer.Close()
	}
	if failed := <-adminFailed; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve adminListen: %w", failed))
	}
	log.Info("stopped")
	return err
}

func serverOptions(c *config.ProxyConfiguration, connections int) proxy.Options {
	return proxy.Options{
		Options: read.Options{
			SyncTimeout:  c.Cache.SyncTimeout.Duration,
			MaxStaleness: c.Cache.MaxStaleness.Duration,
			Recheck:      c.Authorization.WatchRecheckInterval.Duration,
			Compression:  watch.Compression(c.WatchCompression),
		},
		Drain:     c.Drain.Duration,
		Limits:    limits(c, connections, clientDescriptors(*c.Limits.MaxForwardsInFlight)),
		AccessLog: c.AccessLogSampling,
	}
}

// inBackground runs functions until stop is called. stop waits until they have returned. A signal
// does not end them, because the proxy drains first.
func inBackground(ctx context.Context, functions ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, do := range functions {
		running.Go(func() { do(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

func newLogger(level string) (*zap.Logger, zap.AtomicLevel, error) {
	l, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, l, fmt.Errorf("logLevel: %w", err)
	}
	settings := zap.NewProductionEncoderConfig()
	settings.EncodeTime = zapcore.ISO8601TimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(settings), zapcore.Lock(os.Stderr), l)
	return zap.New(core), l, nil
}

type opener struct{ *upstream.Feeds }

func (o opener) Open(
	ctx context.Context, gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding,
	since uint64,
) (read.Feed, error) {
	return o.Feeds.Open(ctx, gvr, w, encoding, since)
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // its sockets may lack the options that package conn sets
	return lc.Listen(ctx, "tcp", address)
}
