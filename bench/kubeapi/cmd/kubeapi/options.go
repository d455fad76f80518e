package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

const usage = `Usage: kubeapi --dir DIR [flags] [-- kube-apiserver flags]

Runs a real kube-apiserver and etcd in one process, on loopback, for tests.

  --dir DIR           state: etcd's data, CA, tokens, admin.kubeconfig (made if missing)
  --listen ADDRESS    loopback host:port to serve on; port 0 chooses a free one (default 127.0.0.1:6443)
  --token-file FILE   further users, in kube-apiserver's static token format: token,user,uid,"group1,group2"
  --audit-log FILE    append one JSON line per request: who asked for what, and the answer's code
  --etcd URL          use this etcd, of another kubeapi, and start none: apiservers of one cluster
  --shutdown-grace D  how long requests may go on after a signal before they are cut (default 300ms)
`

// options holds the flags and arguments.
type options struct {
	dir       string
	listen    string
	tokenFile string // empty: no users except admin
	auditLog  string // empty: no audit log
	etcd      string // URL; empty: its own etcd
	grace     time.Duration
	extra     []string
}

func parseOptions(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("kubeapi", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&o.dir, "dir", "", "")
	fs.StringVar(&o.listen, "listen", "127.0.0.1:6443", "")
	fs.StringVar(&o.tokenFile, "token-file", "", "")
	fs.StringVar(&o.auditLog, "audit-log", "", "")
	fs.StringVar(&o.etcd, "etcd", "", "")
	fs.DurationVar(&o.grace, "shutdown-grace", shutdownGrace, "")
	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if o.dir == "" {
		return options{}, errors.New("--dir is required")
	}
	if o.grace <= 0 {
		return options{}, fmt.Errorf("--shutdown-grace=%v must be more than 0", o.grace)
	}
	o.extra = fs.Args()
	if n := len(args) - len(o.extra); len(o.extra) > 0 && args[n-1] != "--" {
		return options{}, fmt.Errorf("unexpected argument %q: flags for kube-apiserver come after --", o.extra[0])
	}
	return o, nil
}
