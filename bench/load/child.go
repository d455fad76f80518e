package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// process is this program in another process, with one of its other commands.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser // its standard input
	out   *bufio.Reader  // its standard output
	ended chan struct{}
}

func startProcess(args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &process{cmd: exec.Command(self, args...), ended: make(chan struct{})}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.cmd.Stdout, c.out = in, bufio.NewReader(out)
	err = run(c.cmd, c.ended)
	_ = in.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start the %s: %w", args[0], err)
	}
	return c, nil
}

func (c *process) close() error {
	err := c.in.Close()
	_ = c.cmd.Process.Kill()
	<-c.ended
	return err
}

// child is a server of this program in its own process.
type child struct {
	*server
	*process
}

// startChild runs a command of this program that is a server. The server announces its address by
// listen.
func startChild(token string, secure bool, args ...string) (*child, error) {
	p, err := startProcess(args...)
	if err != nil {
		return nil, err
	}
	c := &child{process: p}
	var certificate, address string
	scheme := "http://"
	if secure {
		scheme = "https://"
		if _, err := fmt.Fscanf(c.out, "%q\n", &certificate); err != nil {
			return nil, errors.Join(fmt.Errorf("certificate of the %s: %w", args[0], err), c.close())
		}
	}
	if address, err = c.out.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("address of the %s: %w", args[0], err), c.close())
	}
	cpu := func() (time.Duration, error) { return cluster.CPUOf(c.cmd.Process.Pid) }
	c.server, err = newServer(theFloor, scheme+strings.TrimSpace(address), []byte(certificate), token, cpu, c.cmd.Process.Pid)
	return c, err
}

// listen listens on loopback and announces the address to the parent. If secure, it uses TLS with
// its own certificate.
func listen(out io.Writer, secure bool) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if secure {
		certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, err
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}})
		fmt.Fprintf(out, "%q\n", certificate)
	}
	_, err = fmt.Fprintln(out, l.Addr())
	return l, err
}
