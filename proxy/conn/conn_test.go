package conn

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/proxy/exchange"
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

// The proxy notices the departure of a client, also of one that has sent bytes before.
func TestCancelWhenGoneNoticesTheClientLeaving(t *testing.T) {
	for _, sent := range []string{"", "\r\n"} {
		client, server := pipe(t)
		ctx, cancel := context.WithCancel(t.Context())
		stop := server.CancelWhenGone(cancel)
		if sent != "" {
			if _, err := io.WriteString(client, sent); err != nil {
				t.Fatal(err)
			}
		}
		client.Close()
		<-ctx.Done()
		stop()
		if got, err := io.ReadAll(server); string(got) != sent || err != nil {
			t.Errorf("a later read gives %q, %v, want %q", got, err, sent)
		}
	}
}

// Bytes that the client sends while a handler runs belong to its next request.
func TestCancelWhenGoneLosesNoByte(t *testing.T) {
	client, server := pipe(t)
	stop := server.CancelWhenGone(func() { t.Error("the client is there") })
	// The write returns once these bytes were read ahead.
	if _, err := io.WriteString(client, "GET / HTTP/1.1"); err != nil {
		t.Fatal(err)
	}
	stop()
	go func() {
		_, _ = io.WriteString(client, " and more")
		client.Close()
	}()
	if got, err := io.ReadAll(server); err != nil || string(got) != "GET / HTTP/1.1 and more" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestCancelWhenGoneStops(t *testing.T) {
	client, server := pipe(t)
	for range 3 { // requests in a row
		stop := server.CancelWhenGone(func() { t.Error("the client is there") })
		stop()
	}
	go func() { _, _ = io.WriteString(client, "x") }()
	if b := make([]byte, 1); !func() bool { n, err := server.Read(b); return n == 1 && err == nil }() {
		t.Error("the connection cannot be read")
	}
}

func TestCloseAbandonsAHijackThatDidNotBegin(t *testing.T) {
	_, server := pipe(t)
	n := 0
	server.Abandoned = func() { n++ }
	server.Close()
	server.Close()
	if n != 1 {
		t.Errorf("abandoned %d times, want once", n)
	}
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

// An interruption concerns one request. The client of the next request may be silent.
func TestInterruptionEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pipe(t)
		limits := exchange.Limits{Read: time.Second, Idle: time.Minute, HeaderBytes: 1 << 10}
		receive := func(first bool) {
			go func() { _, _ = io.WriteString(client, "GET / HTTP/1.1\r\n\r\n") }()
			if ok, _ := server.Await(first, limits); !ok {
				t.Fatal("no request arrived")
			}
			if _, err := server.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		receive(true)
		server.Interrupt()
		server.Rest()
		receive(false)
		server.ReadUntil(time.Time{})
		stop := server.CancelWhenGone(func() { t.Error("the client is there") })
		time.Sleep(time.Hour)
		stop()
	})
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
