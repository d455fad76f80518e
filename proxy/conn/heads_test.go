package conn

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// begun serves a client that sends the beginning of a head. The result is whether it was refused.
func begun(t *testing.T, heads *Heads, user, head string) (client net.Conn, refused <-chan bool) {
	t.Helper()
	client, accepted := conntest.Pipe(len(head))
	c := New(accepted)
	c.heads = heads
	if user != "" && !c.HoldAs(user, func() (func(), bool) { return func() {}, true }) {
		t.Fatal("refused")
	}
	t.Cleanup(func() { client.Close() })
	if _, err := io.WriteString(client, head); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 1)
	go func() {
		_, refused := c.Await(true, testLimits())
		_ = c.Close()
		ended <- refused
	}()
	return client, ended
}

// The bytes of incomplete heads are bounded, also those of known clients. A client fills half of its
// part. Other clients, and the clients of the other part, find room. All bytes are given back.
func TestHeadsAreBounded(t *testing.T) {
	for name, users := range map[string][2]string{"known": {"greedy", "modest"}, "unknown": {"", "modest"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				heads := NewHeads()
				head := "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 60<<10)
				var clients []net.Conn
				refusals := 0
				for range 2 * headsMax / len(head) {
					client, refused := begun(t, heads, users[0], head)
					clients = append(clients, client)
					synctest.Wait()
					select {
					case yes := <-refused:
						if !yes {
							t.Fatal("a head ended")
						}
						refusals++
					default:
					}
				}
				taken := heads.known.Taken() + heads.unknown.Taken()
				if taken > headsMax/2 || taken < headsMax/2-2*int64(len(head)) || refusals == 0 {
					t.Errorf("%d bytes are held, want about %d; %d were refused", taken, headsMax/2, refusals)
				}
				other, refused := begun(t, heads, users[1], head)
				synctest.Wait()
				select {
				case <-refused:
					t.Error("another client finds no room")
				default:
				}
				for _, c := range append(clients, other) {
					c.Close()
				}
				synctest.Wait()
				if n := heads.known.Taken() + heads.unknown.Taken(); n != 0 {
					t.Errorf("%d bytes are held in the end", n)
				}
			})
		})
	}
}

// A handshake counts, too: TLS keeps up to 256 KiB of it.
func TestHandshakesAreBounded(t *testing.T) {
	for _, full := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client, accepted := conntest.Pipe(64 << 10)
			defer client.Close()
			heads := NewHeads()
			c := New(accepted)
			c.heads, c.Conn = heads, tls.Server(c.socket, &tls.Config{}) //nolint:gosec // a test
			if full {
				heads.unknown.Try(fair.Claim{User: "others", Size: headsMax})
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
			if n := heads.unknown.Taken() % headsMax; n != 0 {
				t.Errorf("%d bytes are held", n)
			}
		})
	}
}

// Bytes that a client sends ahead while its request is answered count as a head.
func TestBytesAheadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := conntest.Pipe(exchange.AheadMax)
		defer client.Close()
		c := New(accepted)
		c.heads = NewHeads()
		gone := false
		stop := c.CancelWhenGone(func() { gone = true })
		if _, err := client.Write(make([]byte, 10<<10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := c.heads.unknown.Taken(); n < 7<<10 || n > 10<<10 {
			t.Errorf("%d bytes are counted", n)
		}
		c.heads.unknown.Try(fair.Claim{User: "others", Size: headsMax - c.heads.unknown.Taken()})
		if _, err := client.Write(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !gone {
			t.Error("a client without room for its bytes is still there")
		}
		stop()
		c.Close()
		if n := c.heads.unknown.Taken(); n > headsMax-7<<10 {
			t.Errorf("%d bytes are held after the end", n)
		}
	})
}

// A few empty lines before a head are ignored. After more, the connection ends: each would cost time, and
// no limit of a head's size counts them.
func TestEmptyLinesBeforeAHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const line = "\r\n"
		for lines, want := range map[int]bool{0: true, 1: true, emptyMax / len(line): true, emptyMax/len(line) + 1: false} {
			client, accepted := conntest.Pipe(readSize)
			c, ended := New(accepted), make(chan bool, 1)
			go func() {
				ok, _ := c.Await(true, testLimits())
				_ = c.Close()
				ended <- ok
			}()
			send := func(text string) {
				t.Helper()
				if _, err := io.WriteString(client, text); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			for range lines {
				send(line)
			}
			if want {
				for _, b := range []byte("GET / HTTP/1.1\r\n\r\n") {
					send(string(b))
				}
			}
			select {
			case got := <-ended:
				if got != want || got && c.HeadLength != len(c.ahead) {
					t.Errorf("%d empty lines: %t, a head of %d bytes", lines, got, c.HeadLength)
				}
			default:
				t.Errorf("%d empty lines: nothing happens", lines)
			}
			_ = client.Close()
		}
	})
}
