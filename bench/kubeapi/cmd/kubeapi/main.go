// Command kubeapi runs a real kube-apiserver and a real etcd in one process, on loopback. It is the
// upstream in watchproxy's tests.
//
//	kubeapi --dir DIR [--listen 127.0.0.1:6443] [--token-file FILE] [--audit-log FILE] [--etcd URL]
//	    [--shutdown-grace 300ms] [-- kube-apiserver flags]
//
// When the server is ready, it prints one line on standard output, and nothing else afterwards:
//
//	kubeapi ready: https://127.0.0.1:6443
//
// "Ready" means that /readyz is ok and the namespace "default" exists. etcd and the apiserver log
// to standard error. They log only errors, unless a flag such as "-- -v=2" asks for more.
//
// # The directory
//
// All state is in DIR. After an orderly stop or a SIGKILL, another start with the same DIR finds
// the same objects, certificates and tokens. While a process uses DIR, a second process is refused.
//
//	admin.kubeconfig  for kubectl and client-go; the user admin of group system:masters
//	admin.token       that user's bearer token
//	ca.crt, ca.key    the CA for the server's certificate and for client certificates. A client
//	                  certificate has the user as common name and the groups as organizations.
//	etcd/             etcd's data
//	etcd.url          etcd's address, for --etcd of further apiservers; not with --etcd itself
//	apiserver.crt, apiserver.key, sa.key, tokens.csv, audit-policy.yaml, lock   used by the server itself
//
// # What differs from a production apiserver
//
// RBAC is on. Admission is the default one, except that the plugin ServiceAccount is off. With that
// plugin, pods could not be created, because no controller creates service accounts here. The
// endpoints of the service "kubernetes" are not reconciled, because they could only be loopback
// addresses. etcd does not fsync. After a SIGTERM or SIGINT, open watches are cut after a short
// grace period (--shutdown-grace) instead of being drained for a minute. All other settings,
// including the timings of the watch cache, are the defaults. Flags after "--" go to the apiserver
// and override the flags that kubeapi sets.
//
// A Node's status can contain an InternalIP and a daemonEndpoints.kubeletEndpoint.port. The
// apiserver uses this address over HTTPS for logs, exec, attach and port-forward. It does not
// verify the kubelet's certificate, so any test server can act as a kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	opts, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		// From now on, a second signal ends the process immediately.
		context.AfterFunc(ctx, stop)
		err = run(ctx, opts)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kubeapi: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
}

// run starts etcd and then the apiserver, and stops them in reverse order when ctx ends. It returns
// nil only after an orderly stop that was caused by the end of ctx.
func run(ctx context.Context, opts options) error {
	dir, err := openStateDir(opts.dir)
	if err != nil {
		return err
	}
	defer dir.close()

	ln, err := listenLoopback(opts.listen)
	if err != nil {
		return err
	}
	defer ln.Close()

	creds, err := loadCredentials(dir, ln.ip(), opts.tokenFile)
	if err != nil {
		return err
	}
	if err := writeKubeconfig(dir, ln.url(), creds); err != nil {
		return err
	}

	var own etcd
	endpoint := opts.etcd
	if endpoint == "" {
		if own, err = startEtcd(ctx, dir); err != nil {
			return stoppedOr(ctx, err)
		}
		endpoint = own.endpoint()
		if err := dir.write("etcd.url", []byte(endpoint), 0o644); err != nil {
			own.close()
			return err
		}
	}
	serverCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- runAPIServer(serverCtx, dir, ln, endpoint, opts) }()
	ready := make(chan error, 1)
	go func() { ready <- waitReady(serverCtx, ln.url(), creds) }()

	err = watchOver(ctx, ready, own.failed(), stopped, func() { fmt.Printf("kubeapi ready: %s\n", ln.url()) })
	cancel()
	select {
	case <-stopped:
		own.close()
	case <-time.After(opts.grace + shutdownLimit):
		// If an apiserver is interrupted during its start, it may wait forever for its own hooks.
		// Then etcd would wait forever for the apiserver to disconnect. So exit now: etcd's data
		// are as safe as at any other time.
	}
	return stoppedOr(ctx, err)
}

// shutdownLimit is the time that the apiserver gets to stop after its connections are cut.
const shutdownLimit = 3 * time.Second

// watchOver calls announce when ready delivers nil. It returns when ctx ends, or with the first
// error from any channel. If it receives a value from stopped, it puts the value back.
func watchOver(ctx context.Context, ready, etcdFailed <-chan error, stopped chan error, announce func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ready:
			if err != nil {
				return err
			}
			announce()
			ready = nil
		case err := <-etcdFailed:
			return fmt.Errorf("etcd failed: %w", err)
		case err := <-stopped:
			stopped <- err
			if err == nil {
				err = errors.New("the apiserver stopped by itself")
			}
			return err
		}
	}
}

// stoppedOr returns nil if ctx has ended, because failures after that are consequences of it.
// Otherwise it returns err.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
