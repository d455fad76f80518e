package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/util/cert"
)

// If asProgram is in the environment, the test's binary runs as watchproxy.
const asProgram = "WATCHPROXY_TEST_AS_PROGRAM"

// endsAtOnce is a setting of the race detector. Without it, each process takes a second longer to
// end.
const endsAtOnce = "GORACE=atexit_sleep_ms=0"

// programLimit limits the life of each process.
const programLimit = 5 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(
		m,
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),              // client-go's klog flushes as long as the process lives
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"), // it lives as long as the process
	)
}

// kubeconfigFor writes a kubeconfig for a server, with the contexts a and b.
func kubeconfigFor(t *testing.T, server string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "config")
	content := fmt.Sprintf(`{current-context: a, contexts: [{name: a, context: {cluster: c}}, {name: b, context: {cluster: c}}],
clusters: [{name: c, cluster: {server: %q}}]}`, server)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// program is a process that runs serve.
type program struct {
	*exec.Cmd
	stdout *bufio.Reader
}

func start(t *testing.T, upstream string, stderr io.Writer, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), programLimit)
	all := append([]string{"serve", "--kubeconfig", kubeconfigFor(t, upstream), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)
	p := &program{Cmd: exec.CommandContext(ctx, os.Args[0], all...)}
	p.Env = append(os.Environ(), asProgram+"=1", endsAtOnce)
	p.Stderr = stderr
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(stdout)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		if p.ProcessState == nil { // the test has not waited for the process
			p.end(t)
		}
	})
	return p
}

// servesTLS writes a certificate for loopback, and returns the arguments that make a program serve it.
func servesTLS(t *testing.T) (args []string, certificate []byte) {
	t.Helper()
	dir := t.TempDir()
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(os.WriteFile(certFile, certificate, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		t.Fatal(err)
	}
	return []string{"--tls-cert-file", certFile, "--tls-private-key-file", keyFile}, certificate
}

// startTLS starts a program whose admin address others reach over TLS at a port.
func startTLS(t *testing.T, stderr io.Writer) (p *program, port string, certificate []byte) {
	t.Helper()
	args, certificate := servesTLS(t)
	p = start(t, reviewer(t).URL, stderr, append(args, "--admin-listen", ":0")...)
	_, admin := p.ready(t)
	var err error
	if _, port, err = net.SplitHostPort(strings.TrimPrefix(admin, "http://")); err != nil {
		t.Fatal(err)
	}
	return p, port, certificate
}

// end ends the program.
func (p *program) end(t *testing.T) {
	t.Helper()
	_ = p.Process.Signal(syscall.SIGTERM) // if the process has ended, Wait reports it
	if err := p.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// ready waits until the program serves, and returns its URLs.
func (p *program) ready(t *testing.T) (url, admin string) {
	t.Helper()
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("the program ended before it was ready, or was not ready after %v: %v", programLimit, err)
	}
	if _, err := fmt.Sscanf(line, "watchproxy ready: %s (admin %s", &url, &admin); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return url, strings.TrimSuffix(admin, ")")
}
