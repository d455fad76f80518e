// Command kubeapi runs a real kube-apiserver and a real etcd in one process, on loopback. It is the
// upstream in watchproxy's tests.
//
//	kubeapi --dir DIR [--listen 127.0.0.1:6443] [--token-file FILE] [--audit-log FILE] [--etcd URL]
//	    [--shutdown-grace 300ms] [-- kube-apiserver flags]
//
// When the server is ready, it prints one line on standard output, and no other output follows:
//
//	kubeapi ready: https://127.0.0.1:6443
//
// "Ready" means that /readyz is ok and the namespace "default" exists. etcd and the apiserver log
// to standard error. They log errors only, unless a flag such as "-- -v=2" asks for more.
//
// # The directory
//
// All state lives in DIR. After an orderly stop or a SIGKILL, a second start on the same DIR finds
// the same objects, certificates and tokens. A second process on the same DIR is refused.
//
//	admin.kubeconfig  for kubectl and client-go; the user admin of group system:masters
//	admin.token       that user's bearer token
//	ca.crt, ca.key    signs the server's certificate and is the CA for client certificates: sign one with the user as
//	                  common name and the groups as organizations, and the server knows its bearer
//	etcd/             etcd's data
//	etcd.url          where etcd listens, for --etcd of further apiservers; not with --etcd itself
//	apiserver.crt, apiserver.key, sa.key, tokens.csv, audit-policy.yaml, lock   used by the server itself
//
// # What differs from a production apiserver
//
// RBAC is on. Admission is the default one, except that the plugin ServiceAccount is off: no
// controller creates service accounts here, so with that plugin a pod could not be created. The
// endpoints of the service "kubernetes" are not reconciled, because they could only be loopback
// addresses. etcd does not fsync. A SIGTERM or SIGINT cuts the open watches after a short grace
// (--shutdown-grace) instead of draining them for a minute. All other settings, including the watch
// cache's timings, are as shipped. Flags after "--" go to the apiserver and take precedence over
// the flags set here.
//
// A Node's status can hold an InternalIP and a daemonEndpoints.kubeletEndpoint.port. The apiserver
// then uses this address over HTTPS for logs, exec, attach and port-forward. It does not verify the
// kubelet's certificate, so any test server can act as a kubelet.
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
		// From here on a second signal ends the process at once.
		context.AfterFunc(ctx, stop)
		err = run(ctx, opts)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kubeapi: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
}

// run starts etcd, then the apiserver, and stops them in the opposite order when ctx ends. It
// returns nil only after an orderly stop that ctx asked for.
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
		// An apiserver that is interrupted during its start can wait for its own hooks without end.
		// etcd would in turn wait for the apiserver to hang up. etcd's data are as safe now as at
		// any other moment.
	}
	return stoppedOr(ctx, err)
}

// shutdownLimit is how long the apiserver may take to stop once its connections are cut.
const shutdownLimit = 3 * time.Second

// watchOver calls announce when ready delivers nil. It returns when ctx ends, or with the first
// error of any channel. It puts a value that it received from stopped back.
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

// stoppedOr returns nil if ctx has ended, because the end of ctx causes any failure after it.
// Otherwise it returns err.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
