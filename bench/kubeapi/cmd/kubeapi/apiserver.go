package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
	_ "time/tzdata" // to validate CronJob.spec.timeZone

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the apiserver's own set of metrics
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// shutdownGrace is the default time that requests in flight get after a signal, before their
// connections are cut. Watches never finish by themselves.
const shutdownGrace = 300 * time.Millisecond

// auditPolicy makes the audit log contain each request and its outcome, but no bodies. A watch
// causes one line at its start and one at its end; any other request causes one line.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// runAPIServer serves until ctx ends. It does the same as the command kube-apiserver, but takes a
// listener, a context and a destination for the log.
func runAPIServer(ctx context.Context, dir *stateDir, ln *listener, etcdEndpoint string, opts options) error {
	flags, err := apiServerFlags(dir, ln, etcdEndpoint, opts)
	if err != nil {
		return err
	}
	o := apiserveroptions.NewServerRunOptions()
	o.SecureServing.Listener = ln
	if err := parseAPIServerFlags(o, flags); err != nil {
		return err
	}
	registry := o.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return err
	}
	gate := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := startLog(o.Logs, gate); err != nil {
		return err
	}
	defer logs.FlushLogs()
	klog.OsExit = func(int) {
		if ctx.Err() != nil {
			select {} // an interrupted start hook reports a fatal error; block here, so that the orderly stop goes on
		}
		os.Exit(1)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	completed, err := o.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	gate.(featuregate.MutableFeatureGate).AddMetrics()
	if r, ok := registry.(interface{ AddMetrics() }); ok { // since version 1.34
		r.AddMetrics()
	}

	ran := make(chan struct{})
	defer close(ran)
	go func() {
		<-ctx.Done()
		cutUntil(ran, ln, opts.grace)
	}()
	return app.Run(ctx, completed)
}

// cutUntil waits for the grace period and then cuts the server's connections repeatedly until it
// has stopped. One cut is not enough: before the server stops listening, it opens connections to
// itself, and then waits for up to a minute until the last connection is idle.
func cutUntil(stopped <-chan struct{}, ln *listener, grace time.Duration) {
	select {
	case <-time.After(grace):
		ln.cut()
	case <-stopped:
		return
	}
	tick := time.NewTicker(shutdownGrace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			ln.cut()
		case <-stopped:
			return
		}
	}
}

func apiServerFlags(dir *stateDir, ln *listener, etcdEndpoint string, opts options) ([]string, error) {
	flags := []string{
		"--etcd-servers=" + etcdEndpoint,

		"--tls-cert-file=" + dir.file("apiserver.crt"),
		"--tls-private-key-file=" + dir.file("apiserver.key"),
		"--client-ca-file=" + dir.file("ca.crt"),
		"--token-auth-file=" + dir.file("tokens.csv"),
		"--authorization-mode=Node,RBAC",

		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + dir.file("sa.key"),
		"--service-account-signing-key-file=" + dir.file("sa.key"),
		"--allow-privileged=true",

		// The default is an address of this machine that is reachable from other machines.
		"--bind-address=" + ln.ip().String(),
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",

		// The default prefers a node's Hostname, which this machine cannot resolve.
		"--kubelet-preferred-address-types=InternalIP",
	}
	if opts.auditLog != "" {
		if err := dir.write("audit-policy.yaml", []byte(auditPolicy), 0o644); err != nil {
			return nil, err
		}
		flags = append(flags,
			"--audit-log-path="+opts.auditLog,
			"--audit-policy-file="+dir.file("audit-policy.yaml"),
			"--audit-log-mode=blocking",
			"--audit-log-maxsize=1024") // in MB; a larger log would be rotated while tests read it
	}
	// Most tests create pods without a service account.
	if !slices.Contains(opts.extra, "--enable-admission-plugins=ServiceAccount") {
		flags = append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	return append(flags, opts.extra...), nil
}

func parseAPIServerFlags(o *apiserveroptions.ServerRunOptions, args []string) error {
	fs := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, named := range o.Flags().FlagSets {
		fs.AddFlagSet(named)
	}
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("kube-apiserver: unexpected argument %q", fs.Arg(0))
	}
	return nil
}

// startLog sends the log to standard error. Only errors are logged unless -v asks for more. At the
// usual level, every start logs a hundred lines about removed versions and gRPC connections.
func startLog(o *logsapi.LoggingConfiguration, gate featuregate.FeatureGate) error {
	var out io.Writer = os.Stderr
	if o.Verbosity == 0 {
		out = errorsOnly{out}
	}
	return logsapi.ValidateAndApplyWithOptions(o, &logsapi.LoggingOptions{ErrorStream: out, InfoStream: out}, gate)
}

// errorsOnly drops klog's info messages and warnings. klog's text format begins each message with
// the letter of its severity, and klog writes each message in one call.
type errorsOnly struct{ io.Writer }

func (w errorsOnly) Write(message []byte) (int, error) {
	if len(message) > 0 && (message[0] == 'I' || message[0] == 'W') {
		return len(message), nil
	}
	return w.Writer.Write(message)
}
