package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// apiServerLimit is how long an apiserver may take to be ready. It takes 3 s on an idle machine
// with two cores, and a multiple of 3 s while other tests compile.
const apiServerLimit = 2 * time.Minute

// Options configure an APIServer. The zero value is fine.
type Options struct {
	Dir      string   // its state, kept by Close; empty: a temporary directory, removed by Close
	Users    string   // further users, one per line: token,user,uid,"group1,group2"
	AuditLog string   // file for one JSON line per request
	Etcd     string   // another server's, which must outlive this one; empty: one of its own
	Flags    []string // further flags for kube-apiserver
	// Grace is how long requests may go on after the server is told to stop; 0 is kubeapi's
	// default, which is short.
	Grace time.Duration
}

// APIServer is a kube-apiserver with etcd in a process of its own. It can be stopped or killed and
// started again with the same data at the same address. Its methods must not be called
// concurrently; its fields do not change.
type APIServer struct {
	URL        string // https://127.0.0.1:PORT
	Dir        string // the doc of command kubeapi lists what is in it
	Kubeconfig string // path; the user is in system:masters
	Token      string // that user's
	CA         []byte // PEM; ca.key in Dir belongs to it
	Etcd       string // URL

	opts      Options
	temporary bool
	process   *process
}

// StartAPIServer starts bin/kubeapi on a free port of loopback. ctx bounds the start, not the life,
// of the server.
func StartAPIServer(ctx context.Context, opts Options) (*APIServer, error) {
	s := &APIServer{opts: opts, Dir: opts.Dir}
	if s.Dir == "" {
		dir, err := os.MkdirTemp("", "kubeapi-")
		if err != nil {
			return nil, err
		}
		s.Dir, s.temporary = dir, true
	}
	if err := s.firstStart(ctx); err != nil {
		s.Close() //nolint:errcheck // err is the one that tells
		return nil, err
	}
	return s, nil
}

func (s *APIServer) firstStart(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(s.tokenFile(), []byte(s.opts.Users), 0o600); err != nil {
		return err
	}
	if err := s.start(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	s.Kubeconfig = filepath.Join(s.Dir, "admin.kubeconfig")
	token, err := os.ReadFile(filepath.Join(s.Dir, "admin.token"))
	if err != nil {
		return err
	}
	s.Token = string(token)
	if s.CA, err = os.ReadFile(filepath.Join(s.Dir, "ca.crt")); err != nil {
		return err
	}
	if s.Etcd = s.opts.Etcd; s.Etcd == "" {
		etcd, err := os.ReadFile(filepath.Join(s.Dir, "etcd.url"))
		if err != nil {
			return err
		}
		s.Etcd = string(etcd)
	}
	return nil
}

// Start starts the server again after Stop or Kill.
func (s *APIServer) Start(ctx context.Context) error {
	return s.start(ctx, s.URL[len("https://"):])
}

func (s *APIServer) start(ctx context.Context, listen string) error {
	if s.process != nil {
		return fmt.Errorf("the apiserver at %s is running", s.URL)
	}
	binary, err := tool("kubeapi")
	if err != nil {
		return err
	}
	args := []string{"--dir", s.Dir, "--listen", listen}
	if s.opts.Users != "" {
		args = append(args, "--token-file", s.tokenFile())
	}
	if s.opts.AuditLog != "" {
		args = append(args, "--audit-log", s.opts.AuditLog)
	}
	if s.opts.Etcd != "" {
		args = append(args, "--etcd", s.opts.Etcd)
	}
	if s.opts.Grace > 0 {
		args = append(args, "--shutdown-grace", s.opts.Grace.String())
	}
	args = append(append(args, "--"), s.opts.Flags...)
	p, url, err := start(ctx, command{
		path:  binary,
		args:  args,
		ready: "kubeapi ready: ",
		limit: apiServerLimit,
		log:   s.logFile(),
	})
	if err != nil {
		return err
	}
	s.process, s.URL = p, url
	return nil
}

// Stop ends the server in an orderly way: it cuts the watches and keeps the data. It returns an
// error if the server has failed or has to be killed. It does nothing if the server does not run.
func (s *APIServer) Stop() error {
	if s.process == nil {
		return nil
	}
	p := s.process
	s.process = nil
	return p.stop()
}

// Kill ends the server as a crash would.
func (s *APIServer) Kill() {
	if s.process != nil {
		s.process.kill()
		s.process = nil
	}
}

// Close stops the server, and removes its directory if that is a temporary one.
func (s *APIServer) Close() error {
	err := s.Stop()
	if s.temporary {
		os.RemoveAll(s.Dir) //nolint:errcheck // nothing to be done about it
	}
	return err
}

// PID returns the process id, for the server's cost in /proc.
func (s *APIServer) PID() int { return s.process.child.Pid }

// RESTConfig returns a client configuration for the admin, without client-side rate limits.
func (s *APIServer) RESTConfig() *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		panic(fmt.Sprintf("BUG: kubeapi wrote a kubeconfig that cannot be read: %v", err))
	}
	config.QPS = -1
	return config
}

// Client returns a client of the admin's.
func (s *APIServer) Client() *kubernetes.Clientset {
	return kubernetes.NewForConfigOrDie(s.RESTConfig())
}

// Dynamic returns a client of the admin's for resources of all kinds.
func (s *APIServer) Dynamic() *dynamic.DynamicClient {
	return dynamic.NewForConfigOrDie(s.RESTConfig())
}

// Signal sends the server a signal.
func (s *APIServer) Signal(signal syscall.Signal) error { return s.process.child.Signal(signal) }

// Address is where the server listens, without the scheme.
func (s *APIServer) Address() string { return address(s.URL) }

// Log returns everything that the server has printed, over all its starts.
func (s *APIServer) Log() string { return contentOf(s.logFile()) }

func (s *APIServer) logFile() string { return filepath.Join(s.Dir, "kubeapi.log") }

func (s *APIServer) tokenFile() string { return filepath.Join(s.Dir, "tokens.csv") }
