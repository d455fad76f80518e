package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// raceVariable in the environment has proxies built with the race detector by tests that were not: it is the proxy that
// is looked at, and the tests are much quicker without.
const raceVariable = "WATCHPROXY_RACE"

// proxyLimit is how long a proxy may take to be ready.
const proxyLimit = time.Minute

// ProxyOptions configure a Proxy.
type ProxyOptions struct {
	Kubeconfig string   // the upstream; empty: none is named, Args tell
	Binary     string   // empty: BuildProxy's, with the race detector if this program has it, or WATCHPROXY_RACE is set
	Listen     string   // empty: a free port of 127.0.0.1
	Args       []string // further arguments of watchproxy serve
	TLS        bool     // with a certificate of its own making
}

// Proxy is a watchproxy in a process of its own. Its methods must not be called concurrently; its fields do not change.
type Proxy struct {
	URL      string // http://127.0.0.1:PORT, or https
	CA       []byte // PEM, nil without TLS
	key      []byte // of the same certificate
	AdminURL string // http://127.0.0.1:PORT

	tlsDir  string // of its certificate, which it reads again when it changes; empty without TLS
	process *process
}

var proxyAddresses = regexp.MustCompile(`^((?:https?|unix)://\S+) \(admin (https?://\S+)\)$`)

// StartProxy starts watchproxy serve. ctx bounds the start, the build included, but not the life of the proxy.
func StartProxy(ctx context.Context, opts ProxyOptions) (*Proxy, error) {
	binary := opts.Binary
	if binary == "" {
		var err error
		if binary, err = BuildProxy(ctx, raceEnabled || os.Getenv(raceVariable) != ""); err != nil {
			return nil, err
		}
	}
	listen := opts.Listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	args := []string{"serve", "--listen", listen, "--admin-listen", "127.0.0.1:0"}
	if opts.Kubeconfig != "" {
		args = append(args, "--kubeconfig", opts.Kubeconfig)
	}
	p := &Proxy{}
	if opts.TLS {
		more, err := p.writeCertificate()
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	if err := p.start(ctx, binary, append(args, opts.Args...)); err != nil {
		os.RemoveAll(p.tlsDir) //nolint:errcheck // nothing to be done about it
		return nil, err
	}
	return p, nil
}

// start starts the binary and waits until it announces its addresses.
func (p *Proxy) start(ctx context.Context, binary string, args []string) error {
	log, err := os.CreateTemp("", "watchproxy-*.log")
	if err != nil {
		return err
	}
	log.Close() //nolint:errcheck // nothing was written
	var announced string
	p.process, announced, err = start(ctx, command{
		path:  binary,
		args:  args,
		ready: "watchproxy ready: ",
		limit: proxyLimit,
		log:   log.Name(),
	})
	if err != nil {
		os.Remove(log.Name()) //nolint:errcheck // its end is in err
		return err
	}
	addresses := proxyAddresses.FindStringSubmatch(announced)
	if addresses == nil {
		p.Kill()
		return fmt.Errorf("watchproxy announced itself with %q instead of its two addresses", announced)
	}
	p.URL, p.AdminURL = addresses[1], addresses[2]
	return nil
}

// writeCertificate makes a certificate for loopback and returns the arguments that name its files.
func (p *Proxy) writeCertificate() ([]string, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("certificate of the proxy: %w", err)
	}
	dir, err := os.MkdirTemp("", "watchproxy-tls-")
	if err != nil {
		return nil, err
	}
	p.tlsDir = dir
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(os.WriteFile(certFile, certificate, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		return nil, err
	}
	p.CA, p.key = certificate, key
	return []string{"--tls-cert-file", certFile, "--tls-private-key-file", keyFile}, nil
}

// Stop ends the proxy in an orderly way. It returns an error unless the exit code is 0 and the log holds neither a data
// race nor a panic: a proxy that recovers from one and goes on has failed all the same.
func (p *Proxy) Stop() error {
	if err := p.process.stop(); err != nil {
		return err
	}
	log := p.Log()
	for _, disaster := range []string{"DATA RACE", "panic:"} {
		if at := strings.Index(log, disaster); at >= 0 {
			return fmt.Errorf("watchproxy's log holds a %q\n--- from there on\n%s", disaster, log[at:])
		}
	}
	return nil
}

// Kill ends the proxy as a crash would.
func (p *Proxy) Kill() { p.process.kill() }

// Close stops the proxy as Stop does and removes its log and its certificate.
func (p *Proxy) Close() error {
	err := p.Stop()
	os.Remove(p.process.log) //nolint:errcheck // nothing to be done about it
	os.RemoveAll(p.tlsDir)   //nolint:errcheck // as above
	return err
}

// PID returns the process id, by which /proc tells what the proxy costs.
func (p *Proxy) PID() int { return p.process.child.Pid }

// RESTConfig returns a client configuration without credentials and client-side rate limits.
func (p *Proxy) RESTConfig() *rest.Config {
	return &rest.Config{Host: p.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.CA}}
}

// WriteKubeconfig writes a kubeconfig that points at the proxy: what stands behind it is another tier.
func (p *Proxy) WriteKubeconfig(path string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["proxy"] = &clientcmdapi.Cluster{Server: p.URL, CertificateAuthorityData: p.CA}
	c.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy"}
	if p.CA != nil {
		// kubectl asks for a password unless it has credentials for TLS. The proxy does not ask for them.
		c.AuthInfos["nobody"] = &clientcmdapi.AuthInfo{ClientCertificateData: p.CA, ClientKeyData: p.key}
		c.Contexts["proxy"].AuthInfo = "nobody"
	}
	c.CurrentContext = "proxy"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("kubeconfig of the proxy: %w", err)
	}
	return nil
}

// Log returns everything that the proxy has printed.
func (p *Proxy) Log() string { return p.process.output() }
