package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's clock never ends, and its pool of goroutines only after a sleep.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// pipe is a client and the server's side of its connection.
func pipe(t *testing.T) (client net.Conn, server *conn) {
	t.Helper()
	c, s := net.Pipe()
	t.Cleanup(func() { c.Close(); s.Close() })
	return c, &conn{Conn: s}
}

func TestWhenGoneNoticesTheClientLeaving(t *testing.T) {
	client, server := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	stop := server.whenGone(cancel)
	client.Close()
	<-ctx.Done()
	stop()
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a later read gives %v, want EOF", err)
	}
}

// What the client sent in the meantime belongs to its next request.
func TestWhenGoneLosesNoByte(t *testing.T) {
	client, server := pipe(t)
	stop := server.whenGone(func() { t.Error("the client is there") })
	if _, err := io.WriteString(client, "GET / HTTP/1.1"); err != nil { // returns when it was read ahead
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

// A client that said something before it left is noticed, too.
func TestWhenGoneNoticesATalkativeClientLeaving(t *testing.T) {
	client, server := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer server.whenGone(cancel)()
	if _, err := io.WriteString(client, "\r\n"); err != nil {
		t.Fatal(err)
	}
	client.Close()
	<-ctx.Done()
}

func TestWhenGoneStopsQuietly(t *testing.T) {
	client, server := pipe(t)
	for range 3 { // as with requests one after another on a connection
		stop := server.whenGone(func() { t.Error("the client is there") })
		stop()
	}
	go func() { _, _ = io.WriteString(client, "x") }()
	if b := make([]byte, 1); !func() bool { n, err := server.Read(b); return n == 1 && err == nil }() {
		t.Error("the connection is of no use any more")
	}
}

func TestCloseAbandonsAHijackThatDidNotBegin(t *testing.T) {
	_, server := pipe(t)
	n := 0
	server.abandoned = func() { n++ }
	server.Close()
	server.Close()
	if n != 1 {
		t.Errorf("abandoned %d times, want once", n)
	}
}
