package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// raceVariable is an environment variable. If the variable is set, tests that run without the race
// detector build proxies with the race detector. So the proxy is checked for races, and the tests
// themselves are much faster.
const raceVariable = "WATCHPROXY_RACE"

// ProxyOptions configure a Proxy.
type ProxyOptions struct {
	Kubeconfig string   // the upstream; empty: no --kubeconfig except in Args
	Settings   string   // YAML of its configuration file, after apiVersion and kind; empty: no file
	Binary     string   // empty: built by BuildProxy; see also WATCHPROXY_RACE
	NoRace     bool     // build without the race detector, which costs memory and time
	Listen     string   // empty: a free port of 127.0.0.1
	Args       []string // further arguments of watchproxy serve
	TLS        bool     // with a certificate that prepare creates
}

// Proxy is a watchproxy in a child process. Its methods must not be called concurrently. Its fields
// do not change.
type Proxy struct {
	URL      string // http://127.0.0.1:PORT, or https
	CA       []byte // PEM, nil without TLS
	key      []byte // the certificate's key
	AdminURL string // http://127.0.0.1:PORT

	dir     string // its log, certificate and configuration; the proxy rereads the last two
	binary  string
	args    []string // of watchproxy serve, except its addresses
	listen  string
	admin   string
	process *process // nil before the first start
	logged  int      // length of the log before the last start
}

var proxyAddresses = regexp.MustCompile(`^(https?://\S+) \(admin (https?://\S+)\)$`)

// StartProxy starts watchproxy serve. ctx limits the build and the start, but not the proxy's life.
func StartProxy(ctx context.Context, opts ProxyOptions) (*Proxy, error) {
	if opts.Binary == "" {
		var err error
		if opts.Binary, err = BuildProxy(ctx, !opts.NoRace && (raceEnabled || os.Getenv(raceVariable) != "")); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "watchproxy-")
	if err != nil {
		return nil, err
	}
	p := &Proxy{dir: dir, binary: opts.Binary, listen: opts.Listen, admin: "127.0.0.1:0"}
	if err = p.prepare(opts); err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		os.RemoveAll(dir) //nolint:errcheck // nothing can be done about an error
		return nil, err
	}
	return p, nil
}

// prepare writes the proxy's files and collects its arguments.
func (p *Proxy) prepare(opts ProxyOptions) (err error) {
	if p.listen == "" {
		p.listen = "127.0.0.1:0"
	}
	if opts.Kubeconfig != "" {
		p.args = append(p.args, "--kubeconfig", opts.Kubeconfig)
	}
	if opts.TLS {
		err = p.writeCertificate()
		p.args = append(p.args, "--tls-cert-file", p.file("tls.crt"), "--tls-private-key-file", p.file("tls.key"))
	}
	if opts.Settings != "" {
		err = errors.Join(err, p.Configure(opts.Settings))
		p.args = append(p.args, "--config", p.file("config.yaml"))
	}
	p.args = append(p.args, opts.Args...)
	return err
}

func (p *Proxy) file(name string) string { return filepath.Join(p.dir, name) }

// Configure replaces the settings in the configuration file.
func (p *Proxy) Configure(settings string) error {
	const head = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"
	return replaceFile(p.file("config.yaml"), []byte(head+settings))
}

// replaceFile replaces a file atomically, as the kubelet does in a ConfigMap's volume.
func replaceFile(path string, content []byte) error {
	return errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path))
}

// Start starts the proxy again after Stop or Kill, with the same files at the same addresses.
func (p *Proxy) Start(ctx context.Context) (err error) {
	if log, err := os.Stat(p.LogFile()); err == nil {
		p.logged = int(log.Size())
	}
	var announced string
	p.process, announced, err = start(ctx, command{
		path:  p.binary,
		args:  append([]string{"serve", "--listen", p.listen, "--admin-listen", p.admin}, p.args...),
		ready: "watchproxy ready: ",
		log:   p.LogFile(),
	})
	if err != nil {
		return err
	}
	addresses := proxyAddresses.FindStringSubmatch(announced)
	if addresses == nil {
		p.Kill()
		return fmt.Errorf("watchproxy announced itself with %q instead of its two addresses", announced)
	}
	if p.URL == "" {
		p.URL, p.AdminURL = addresses[1], addresses[2]
		p.listen, p.admin = strings.TrimPrefix(strings.TrimPrefix(p.URL, "http://"), "https://"), address(p.AdminURL)
	}
	return nil
}

// writeCertificate creates a certificate for loopback. Its key is as the apiserver's and as the
// chart's: RSA would make each connection cost several times as much.
func (p *Proxy) writeCertificate() (err error) {
	if p.CA, p.key, err = selfSigned(); err != nil {
		return fmt.Errorf("certificate of the proxy: %w", err)
	}
	return errors.Join(p.ReplaceCertificate(p.CA), p.ReplaceKey(p.key))
}

// ReplaceCertificate replaces the certificate's file. The proxy serves the new certificate after
// its key has also been replaced.
func (p *Proxy) ReplaceCertificate(pem []byte) error { return replaceFile(p.file("tls.crt"), pem) }

// ReplaceKey replaces the file of the certificate's key.
func (p *Proxy) ReplaceKey(pem []byte) error { return replaceFile(p.file("tls.key"), pem) }

// Stop ends the proxy with SIGTERM. It returns an error if the exit code is not 0, or if the log
// contains a data race or a panic. A panic from which the proxy recovers is also an error.
func (p *Proxy) Stop() error {
	if p.process == nil {
		return nil
	}
	if err := p.process.stop(); err != nil {
		return err
	}
	log := contentOf(p.LogFile())
	for _, disaster := range []string{"DATA RACE", "panic:"} {
		if at := strings.Index(log, disaster); at >= 0 {
			return fmt.Errorf("watchproxy's log holds a %q\n--- from there on\n%s", disaster, log[at:])
		}
	}
	return nil
}

// Kill ends the proxy without a shutdown, like a crash.
func (p *Proxy) Kill() { p.process.kill() }

// Signal sends the proxy a signal.
func (p *Proxy) Signal(signal syscall.Signal) error { return p.process.child.Signal(signal) }

// Close stops the proxy like Stop and removes its files.
func (p *Proxy) Close() error { return errors.Join(p.Stop(), os.RemoveAll(p.dir)) }

// PID returns the process id, for measurements in /proc.
func (p *Proxy) PID() int { return p.process.child.Pid }

// Address returns the address of the proxy without the scheme.
func (p *Proxy) Address() string { return address(p.URL) }

func address(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	return rest
}

// RESTConfig returns a client configuration without credentials and without client-side rate
// limits.
func (p *Proxy) RESTConfig() *rest.Config {
	return &rest.Config{Host: p.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.CA}}
}

// WriteKubeconfig writes a kubeconfig for the proxy. Another proxy can use it to form a second
// tier.
func (p *Proxy) WriteKubeconfig(path string) error {
	var user clientcmdapi.AuthInfo
	if p.CA != nil {
		// Without credentials for TLS, kubectl asks for a password. The proxy ignores this
		// certificate.
		user = clientcmdapi.AuthInfo{ClientCertificateData: p.CA, ClientKeyData: p.key}
	}
	return WriteKubeconfig(path, p.URL, p.CA, user)
}

// LogFile returns the path of the file with the proxy's output.
func (p *Proxy) LogFile() string { return p.file("watchproxy.log") }

// Log returns the proxy's output since its last start.
func (p *Proxy) Log() string {
	log := contentOf(p.LogFile())
	return log[min(p.logged, len(log)):]
}
