package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"text/template"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// nginx serves prepared bytes as files, and also forwards requests. It has a reputation as the
// fastest server.
type nginx struct {
	dir       string
	cmd       *exec.Cmd
	ended     chan struct{}
	ca        []byte
	plain     string // http://127.0.0.1:PORT
	secure    string // https://127.0.0.1:PORT
	forwarder string // https://127.0.0.1:PORT, in front of the apiserver
}

// nginxConfig uses one process, so the processor time of this process is nginx's total.
var nginxConfig = template.Must(template.New("").Parse(`daemon off;
master_process off;
pid {{.Dir}}/pid;
error_log {{.Dir}}/error.log;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  keepalive_timeout 300s;
  types {}
  default_type application/octet-stream;
  gzip_static on;
  client_body_temp_path {{.Dir}}/tmp1;
  proxy_temp_path {{.Dir}}/tmp2;
  fastcgi_temp_path {{.Dir}}/tmp3;
  uwsgi_temp_path {{.Dir}}/tmp4;
  scgi_temp_path {{.Dir}}/tmp5;
  root {{.Dir}}/www;
  server { listen {{.Plain}}; }
  server {
    listen {{.Secure}} ssl;
    ssl_certificate {{.Dir}}/tls.crt;
    ssl_certificate_key {{.Dir}}/tls.key;
    ssl_protocols TLSv1.3;
  }
  upstream apiserver {
    server {{.Upstream}};
    keepalive 16;
  }
  server {
    listen {{.Forwarder}} ssl;
    ssl_certificate {{.Dir}}/tls.crt;
    ssl_certificate_key {{.Dir}}/tls.key;
    ssl_protocols TLSv1.3;
    location / {
      proxy_pass https://apiserver;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }
  }
}
`))

// startNginx starts nginx in front of the apiserver at host:port.
func startNginx(ctx context.Context, upstream string) (n *nginx, err error) {
	n = &nginx{ended: make(chan struct{})}
	dir, err := os.MkdirTemp("", "nginx-")
	if err != nil {
		return nil, err
	}
	n.dir = dir
	defer func() { // n is nil then
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("certificate of nginx: %w", err)
	}
	n.ca = certificate
	settings := struct{ Dir, Plain, Secure, Forwarder, Upstream string }{Dir: n.dir, Upstream: upstream}
	for _, address := range []*string{&settings.Plain, &settings.Secure, &settings.Forwarder} {
		if *address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	n.plain, n.secure, n.forwarder = "http://"+settings.Plain, "https://"+settings.Secure, "https://"+settings.Forwarder
	config, err := os.Create(filepath.Join(n.dir, "nginx.conf"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		nginxConfig.Execute(config, settings), config.Close(), os.Mkdir(filepath.Join(n.dir, "www"), 0o755),
		os.WriteFile(filepath.Join(n.dir, "tls.crt"), certificate, 0o600), os.WriteFile(filepath.Join(n.dir, "tls.key"), key, 0o600),
	); err != nil {
		return nil, err
	}
	n.cmd = exec.Command(filepath.Join(cluster.Root(), "bin", "nginx"), "-p", n.dir, "-e", filepath.Join(n.dir, "error.log"), "-c", config.Name())
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := run(n.cmd, n.ended); err != nil {
		return nil, fmt.Errorf("cannot start nginx: %w (make bin/nginx)", err)
	}
	return n, n.wait(ctx, settings.Secure)
}

// run starts a child that ends with this program. Pdeathsig takes effect when the thread that
// started the child ends, so this thread waits here.
func run(cmd *exec.Cmd, ended chan<- struct{}) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the child is killed at the end
		}
	}()
	return <-started
}

// freeAddress returns an address without a listener.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// wait returns when nginx listens.
func (n *nginx) wait(ctx context.Context, address string) error {
	const limit, pause = 10 * time.Second, 10 * time.Millisecond
	for began := time.Now(); time.Since(began) < limit; time.Sleep(pause) {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
			return conn.Close()
		}
	}
	n.close()
	log, _ := os.ReadFile(filepath.Join(n.dir, "error.log"))
	return fmt.Errorf("nginx does not listen after %v: %s", limit, log)
}

// serve writes a response to a file.
func (n *nginx) serve(path string, body []byte) error {
	return os.WriteFile(filepath.Join(n.dir, "www", path), body, 0o644)
}

func (n *nginx) cpu() (time.Duration, error) { return cluster.CPUOf(n.cmd.Process.Pid) }

func (n *nginx) close() {
	_ = n.cmd.Process.Kill()
	<-n.ended
	_ = os.RemoveAll(n.dir)
}
