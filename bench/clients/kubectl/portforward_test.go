package kubectl

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// digester starts a server on a port of this machine. The server reads a connection to its end and
// sends back the same bytes and their digest.
func digester(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(2 * cluster.Limit))
				if all, err := io.ReadAll(c); err == nil {
					fmt.Fprintf(c, "%s%x", all, sha256.Sum256(all))
				}
			})
		}
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

var forwardingFrom = regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> \d+$`)

func TestKubectlPortForward(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-port-forward")
	port := digester(t)
	for _, f := range w.Fronts(t) {
		for carrier, env := range carriers {
			t.Run(f.Name+"/"+carrier, func(t *testing.T) {
				r := f.Start(t, clients.Kubectl("-n", k.namespace, "port-forward", "--address", "127.0.0.1", "pod/"+k.pod, ":"+port).With(env...))
				local := forwardingFrom.FindStringSubmatch(r.Line(t))
				if local == nil {
					t.Fatal("kubectl does not tell its port")
				}
				var going sync.WaitGroup
				defer going.Wait()
				defer r.Kill()
				going.Go(func() { io.Copy(io.Discard, r.Stdout) })
				const connections = 4
				var digests sync.WaitGroup
				for range connections {
					digests.Go(func() {
						if err := digest(local[1]); err != nil {
							t.Error(err)
						}
					})
				}
				digests.Wait()
				if err := digest(local[1]); err != nil {
					t.Errorf("after the others: %v", err)
				}
				if k.open.Load() != 1 {
					t.Errorf("the kubelet has %d sessions", k.open.Load())
				}
				r.Kill()
				cluster.Eventually(t, "the session ends with kubectl", func() bool { return k.open.Load() == 0 })
			})
		}
	}
}

// digest sends data to a digester and checks the answer.
func digest(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(cluster.Limit))
	const size = 512 << 10
	data := random(size)
	if _, err := io.Copy(c, strings.NewReader(data)); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if string(got) != data+fmt.Sprintf("%x", sha256.Sum256([]byte(data))) {
		return errors.New("what came back is not what was sent")
	}
	return nil
}
