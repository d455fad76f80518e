package cluster

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options configure an APIServer. The zero value has usable defaults.
type Options struct {
	Dir      string   // directory of its state, kept by Close; empty: a temporary directory
	Users    string   // further users, one per line: token,user,uid,"group1,group2"
	AuditLog string   // file with one JSON line for each request
	Etcd     string   // URL of another server's etcd, which must run longer; empty: its own etcd
	Flags    []string // further flags for kube-apiserver
	Binary   string   // file to run; empty: bin/kubeapi, or what WATCHPROXY_KUBEAPI names
	// Grace is the time for which requests may continue after the server is told to stop; 0 is
	// kubeapi's default, which is short.
	Grace time.Duration
}

// APIServer is a kube-apiserver with etcd in one child process. It can be stopped or killed, and
// then started again with the same data at the same address. Its methods must not be called
// concurrently. Its fields do not change.
type APIServer struct {
	URL        string // https://127.0.0.1:PORT
	Dir        string // its files are listed in the documentation of command kubeapi
	Kubeconfig string // path; the user is in system:masters
	Token      string // the same user's token
	CA         []byte // PEM; ca.key in Dir belongs to it
	Etcd       string // URL

	opts      Options
	temporary bool
	process   *process
}

// apiserverVariable is the environment variable with the path of another bin/kubeapi, for example of
// another version of Kubernetes.
const apiserverVariable = "WATCHPROXY_KUBEAPI"

// kubeapi returns the path of the apiserver's binary.
func kubeapi() (string, error) {
	if path := os.Getenv(apiserverVariable); path != "" {
		return path, nil
	}
	return tool("kubeapi")
}

// KubernetesMinor returns the minor version of kube-apiserver: 36 for 1.36.
func KubernetesMinor() (int, error) {
	path, err := kubeapi()
	if err != nil {
		return 0, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for _, m := range info.Deps {
		if parts := strings.Split(m.Version, "."); m.Path == "k8s.io/kubernetes" && len(parts) > 1 {
			return strconv.Atoi(parts[1])
		}
	}
	return 0, fmt.Errorf("%s does not tell its version of Kubernetes", path)
}

// StartAPIServer starts bin/kubeapi on a free port of the loopback address. ctx limits the start,
// but not the server's life.
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
		s.Close() //nolint:errcheck // err is more useful
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
	binary, err := s.opts.Binary, error(nil)
	if binary == "" {
		binary, err = kubeapi()
	}
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
		log:   s.logFile(),
	})
	if err != nil {
		return err
	}
	s.process, s.URL = p, url
	return nil
}

// Upgrade sets the file that the next Start runs, which may be another version of Kubernetes.
func (s *APIServer) Upgrade(binary string) { s.opts.Binary = binary }

// Reconfigure sets the flags of kube-apiserver for the next Start.
func (s *APIServer) Reconfigure(flags ...string) { s.opts.Flags = flags }

// Stop makes the server cut the watches, save its data and exit. It returns an error if the server
// has failed or had to be killed. If the server is not running, Stop does nothing.
func (s *APIServer) Stop() error {
	if s.process == nil {
		return nil
	}
	p := s.process
	s.process = nil
	return p.stop()
}

// Kill ends the server without a shutdown, like a crash.
func (s *APIServer) Kill() {
	if s.process != nil {
		s.process.kill()
		s.process = nil
	}
}

// Close stops the server and removes its directory if it is temporary.
func (s *APIServer) Close() error {
	err := s.Stop()
	if s.temporary {
		os.RemoveAll(s.Dir) //nolint:errcheck // nothing can be done about an error
	}
	return err
}

// PID returns the process id, for measurements in /proc.
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

// Client returns a client with the admin's rights.
func (s *APIServer) Client() *kubernetes.Clientset {
	return kubernetes.NewForConfigOrDie(s.RESTConfig())
}

// Dynamic returns a client for all kinds of resources, with the admin's rights.
func (s *APIServer) Dynamic() *dynamic.DynamicClient {
	return dynamic.NewForConfigOrDie(s.RESTConfig())
}

// Signal sends the server a signal.
func (s *APIServer) Signal(signal syscall.Signal) error { return s.process.child.Signal(signal) }

// Address returns the address of the server without the scheme.
func (s *APIServer) Address() string { return address(s.URL) }

// Log returns everything that the server has printed since its first start.
func (s *APIServer) Log() string { return contentOf(s.logFile()) }

func (s *APIServer) logFile() string { return filepath.Join(s.Dir, "kubeapi.log") }

func (s *APIServer) tokenFile() string { return filepath.Join(s.Dir, "tokens.csv") }
