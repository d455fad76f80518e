package conn

import (
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// holds counts what it has given.
func holds(held *int) func() (giveBack func(), ok bool) {
	return func() (func(), bool) {
		*held++
		return func() { *held-- }, true
	}
}

// If a handler outlives its connection, the closed connection is not counted.
func TestClosedConnectionIsNotCounted(t *testing.T) {
	_, c := inMemory(t)
	held := 0
	if !c.HoldAs("a", holds(&held)) || !c.HoldAs("b", holds(&held)) || held != 1 {
		t.Fatalf("%d are held", held)
	}
	_ = c.Close()
	if !c.HoldAs("a", holds(&held)) || held != 0 {
		t.Errorf("held after the end: %v", held)
	}
}

// withoutRoom has a pool that is full.
type withoutRoom struct{ Unread }

func (withoutRoom) UnreadIn() (*fair.Pool, string) { return fair.NewPool(1, true), "u" }

// A guard that fires as its write ends leaves no connection whose next write would fail.
func TestGuardFiresAtTheEndOfAWrite(t *testing.T) {
	for range 1000 { // the client or the guard may be first
		synctest.Test(t, func(t *testing.T) {
			client, c := inMemory(t)
			c.Guard = fair.NewGuard(64<<10, withoutRoom{Unread{c}})
			go func() {
				time.Sleep(time.Second) // the guard's patience
				_, _ = io.Copy(io.Discard, client)
			}()
			_, first := c.Write(make([]byte, 64<<10))
			synctest.Wait()
			c.Guard = nil // the stream ends, and a request follows
			if _, second := c.Write([]byte("HTTP/1.1 201 Created")); first == nil && second != nil {
				t.Fatalf("the write that was too late succeeded, but the next one fails: %v", second)
			}
			if err := errors.Join(c.Close(), client.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TLS keeps its buffers of a handshake. So those of a long one count until the stranger is known or has
// left, and longer ones are refused.
func TestHandshakesAreHeld(t *testing.T) {
	for name, test := range map[string]struct {
		length  int // of the server's name
		known   bool
		held    bool
		refused bool
	}{
		"short":            {100, true, false, false},
		"long, then left":  {2 * handshakeFree, false, true, false},
		"long, then known": {2 * handshakeFree, true, true, false},
		"too long":         {handshakeMost, false, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, accepted := conntest.Pipe(unread)
			heads := &Heads{Strangers: fair.NewPool(1<<20, true), Users: fair.NewPool(1<<20, true)}
			c := New(accepted)
			c.Account.heads, c.Conn = heads, tls.Server(c.socket, &tls.Config{Certificates: certificate(t)})                  //nolint:gosec // a test
			client := tls.Client(theirs, &tls.Config{InsecureSkipVerify: true, ServerName: strings.Repeat("a", test.length)}) //nolint:gosec // a test
			go func() { _ = client.HandshakeContext(t.Context()) }()
			if _, err := c.Handshake(); errors.Is(err, ErrHeads) != test.refused {
				t.Errorf("%s: %v", name, err)
			}
			if n := heads.Strangers.Taken(); n >= int64(test.length) != test.held {
				t.Errorf("%s: %d bytes are held", name, n)
			}
			if held := 0; test.known {
				c.HoldAs("a", holds(&held))
			} else {
				_ = c.Close()
			}
			if n := heads.Strangers.Taken(); n != 0 {
				t.Errorf("%s: %d bytes are held afterwards", name, n)
			}
			_, _ = c.Close(), theirs.Close()
		})
	}
}

// A handshake counts while it lasts, too.
func TestHandshakesAreBounded(t *testing.T) {
	for _, full := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client, accepted := conntest.Pipe(64 << 10)
			defer client.Close()
			heads := &Heads{Strangers: fair.NewPool(1<<20, true), Users: fair.NewPool(1<<20, true)}
			c := New(accepted)
			c.Account.heads, c.Conn = heads, tls.Server(c.socket, &tls.Config{}) //nolint:gosec // a test
			if full {
				heads.Strangers.Try("others", heads.Strangers.Capacity)
			}
			const part = 16 << 10
			hello := append([]byte{0x16, 3, 1, part >> 8, 0, 1, 0, 0xf0, 0}, make([]byte, part-4)...) // a ClientHello of 60 KiB
			if _, err := client.Write(append(hello, 0x16, 3, 1, part>>8, 0)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			_, err := c.Handshake()
			if errors.Is(err, ErrHeads) != full || full != (time.Since(began) == 0) {
				t.Errorf("without room: %t, %v after %s", full, err, time.Since(began))
			}
			if n := heads.Strangers.Taken() % heads.Strangers.Capacity; n != 0 {
				t.Errorf("%d bytes are held", n)
			}
		})
	}
}

// A client that gets an early response over TLS may go on sending: the connection is not closed
// meanwhile, because a reset could overtake the response.
func TestRestOfAnUploadIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, accepted := conntest.Pipe(unread)
		c := New(accepted)
		c.Conn = tls.Server(c.socket, &tls.Config{Certificates: certificate(t)}) //nolint:gosec // a test
		client := tls.Client(theirs, &tls.Config{InsecureSkipVerify: true})      //nolint:gosec // a test
		go func() { _ = client.HandshakeContext(t.Context()) }()
		if _, err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() {
			c.InputLeft = true
			closed <- c.Close()
		}()
		for i := range 100 {
			if _, err := client.Write(make([]byte, 2000)); err != nil {
				t.Fatalf("after %d pieces: %v", i, err)
			}
			synctest.Wait()
		}
		_ = client.Close()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// Cut ends the wait of TLS for a client that does not read that the connection ends.
func TestCutEndsClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, accepted := conntest.Pipe(unread)
		c := New(accepted)
		c.Conn = tls.Server(c.socket, &tls.Config{Certificates: certificate(t)}) //nolint:gosec // a test
		var set Set
		set.add(c, 1, 1)
		client := tls.Client(theirs, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}) //nolint:gosec // a test
		shaken := make(chan error, 1)
		go func() { shaken <- client.HandshakeContext(t.Context()) }()
		_, err := c.Handshake()
		if err := errors.Join(err, <-shaken); err != nil {
			t.Fatal(err)
		}
		began, closed := time.Now(), make(chan struct{})
		go func() {
			defer close(closed)
			c.InputLeft = true // waits for the client
			_ = c.Close()
		}()
		synctest.Wait()
		set.Cut()
		<-closed
		if took := time.Since(began); took > 0 || set.Len() != 0 {
			t.Errorf("took %s, and %d connections are open", took, set.Len())
		}
	})
}
