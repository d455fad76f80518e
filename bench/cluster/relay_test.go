package cluster

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A relay passes all data on until it is cut. It closes connections that have no destination.
func TestRelay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var echoes sync.WaitGroup
	echoes.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			echoes.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	to := l.Addr().String()
	r := RelayT(t, func() string { return to })
	echo := func() (string, error) {
		c, err := net.Dial("tcp", r.Address())
		if err != nil {
			return "", err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			return "", err
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return "", err
		}
		got, err := io.ReadAll(c)
		return string(got), err
	}
	works := func(want bool) {
		t.Helper()
		if got, err := echo(); (got == "hello" && err == nil) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
	works(true)
	r.Cut()
	works(false)
	r.Mend()
	works(true)
	r.Slow(0, 1<<20)
	works(true)
	r.Freeze()
	waiting := make(chan error)
	echoes.Go(func() {
		_, err := echo()
		waiting <- err
	})
	select {
	case err := <-waiting:
		t.Errorf("something passes a frozen relay: %v", err)
	default:
	}
	r.Thaw()
	if err := Receive(t, "what was frozen", waiting); err != nil {
		t.Error(err)
	}
	to = ""
	works(false)
	to = "127.0.0.1:1" // nothing listens on this port
	works(false)
	r.Cut()
	l.Close()
	echoes.Wait()
}
