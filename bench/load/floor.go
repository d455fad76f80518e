package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// floor is a program that does the least that anybody who sends events to many must do: it writes ready frames to every
// connection. Nobody can have a watch of less.
type floor struct {
	server *server
	cmd    *exec.Cmd
	frames io.WriteCloser // to its standard input, each behind its length
	ended  chan struct{}
}

// newFloorCommand makes the program: it listens, says where, takes every connection for a watch, and writes what comes
// from its standard input to all of them.
func newFloorCommand() *cobra.Command {
	var secure bool
	cmd := &cobra.Command{Use: "floor", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		return serveFloor(os.Stdin, os.Stdout, secure)
	}}
	cmd.Flags().BoolVar(&secure, "tls", false, "")
	return cmd
}

func serveFloor(frames io.Reader, out io.Writer, secure bool) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var conns []net.Conn
	defer func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	var config *tls.Config
	if secure {
		certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
		if err != nil {
			return err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return err
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
		fmt.Fprintf(out, "%q\n", certificate)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if config != nil {
				c = tls.Server(c, config)
			}
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					_ = c.Close()
					return
				}
				mu.Lock()
				defer mu.Unlock()
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				conns = append(conns, c)
			}()
		}
	}()
	fmt.Fprintln(out, l.Addr())
	for {
		var size uint32
		if err := binary.Read(frames, binary.BigEndian, &size); err != nil {
			return nil // whoever started us is done
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(frames, frame); err != nil {
			return nil
		}
		mu.Lock()
		open := conns
		mu.Unlock()
		var halves sync.WaitGroup
		for _, half := range [][]net.Conn{open[:len(open)/2], open[len(open)/2:]} {
			halves.Go(func() {
				for _, c := range half {
					_, _ = c.Write(frame) // a client that is gone is gone
				}
			})
		}
		halves.Wait()
	}
}

// startFloor starts it as a process of its own.
func startFloor(secure bool) (*floor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &floor{cmd: exec.Command(self, "floor", fmt.Sprintf("--tls=%t", secure)), ended: make(chan struct{})}
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	f.cmd.Stderr = os.Stderr
	if f.frames, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // it was read
	f.cmd.Stdout = in
	err = run(f.cmd, f.ended)
	_ = in.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start the floor: %w", err)
	}
	said := bufio.NewReader(out)
	var certificate, address string
	if secure {
		if _, err := fmt.Fscanf(said, "%q\n", &certificate); err != nil {
			return nil, errors.Join(fmt.Errorf("the floor's certificate: %w", err), f.close())
		}
	}
	if address, err = said.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("the floor's address: %w", err), f.close())
	}
	scheme := "http://"
	if secure {
		scheme = "https://"
	}
	cpu := func() (time.Duration, error) { return cluster.CPUOf(f.cmd.Process.Pid) }
	f.server, err = newServer(theFloor, scheme+strings.TrimSpace(address), []byte(certificate), "", cpu, f.cmd.Process.Pid)
	return f, err
}

// write has a frame written to all.
func (f *floor) write(_ context.Context, frame []byte) error {
	_, err := f.frames.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

func (f *floor) close() error {
	err := f.frames.Close()
	_ = f.cmd.Process.Kill()
	<-f.ended
	return err
}
