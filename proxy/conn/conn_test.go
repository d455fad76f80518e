package conn

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// pipe is a client and the server's side of its connection.
func pipe(t *testing.T) (client net.Conn, server *Conn) {
	t.Helper()
	c, s := net.Pipe()
	t.Cleanup(func() { c.Close(); s.Close() })
	return c, New(s)
}

// A write that the client does not read fails after the stall time, but not earlier. There are
// three cases: the first write, a write soon after another write, and a write after a reset of the
// deadline. Fasthttp resets the deadline when it passes a connection on.
func TestUnreadWriteIsCut(t *testing.T) {
	for name, before := range map[string]func(c *Conn, client net.Conn){
		"first write": func(*Conn, net.Conn) {},
		"after another": func(c *Conn, client net.Conn) {
			writeAndRead(c, client)
			time.Sleep(50 * time.Second)
		},
		"after a hijack": func(c *Conn, client net.Conn) {
			writeAndRead(c, client)
			_ = c.SetDeadline(time.Time{})
		},
		"after a longer stall": func(c *Conn, client net.Conn) {
			c.Stall = time.Hour
			writeAndRead(c, client)
			c.Stall = time.Minute
		},
		"after none": func(c *Conn, client net.Conn) {
			c.Stall = 0
			writeAndRead(c, client)
			c.Stall = time.Minute
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := pipe(t)
				server.Stall = time.Minute
				before(server, client)
				began := time.Now()
				if _, err := server.Write([]byte("x")); !isTimeout(err) {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took < time.Minute || took > 90*time.Second {
					t.Errorf("cut after %v", took)
				}
			})
		})
	}
}

// Without a stall time, a write has no deadline, not even an earlier one.
func TestUnreadWriteIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pipe(t)
		server.Stall = time.Minute
		writeAndRead(server, client)
		server.Stall = 0
		time.AfterFunc(time.Hour, func() { _, _ = client.Read(make([]byte, 10)) })
		if _, err := server.Write([]byte("x")); err != nil {
			t.Error(err)
		}
	})
}

func writeAndRead(c *Conn, client net.Conn) {
	go func() { _, _ = client.Read(make([]byte, 10)) }()
	_, _ = c.Write([]byte("x")) // otherwise the test would hang
}

// If a handler outlives its connection, the closed connection is not counted.
func TestClosedConnectionIsNotCounted(t *testing.T) {
	_, c := pipe(t)
	held := 0
	take := func() (func(), bool) {
		held++
		return func() { held-- }, true
	}
	if !c.HoldAs("a", take) {
		t.Fatal("refused")
	}
	_ = c.Close()
	if !c.HoldAs("a", take) || held != 0 {
		t.Errorf("held after the end: %v", held)
	}
}
