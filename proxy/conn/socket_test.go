package conn

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// unread is the number of unread bytes that a connection in memory holds.
const unread = 16 << 10

// inMemory returns a client's connection and the proxy's end of it.
func inMemory(t *testing.T) (client net.Conn, server *Conn) {
	t.Helper()
	client, accepted := conntest.Pipe(unread)
	server = New(accepted)
	server.Stall = time.Minute
	t.Cleanup(func() { client.Close() })
	return client, server
}

// inKernel does the same with sockets of the kernel.
func inKernel(t *testing.T) (client net.Conn, server *Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, New(accepted)
}

// certificate returns a server's certificate.
func certificate(t *testing.T) []tls.Certificate {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return s.TLS.Certificates
}

// Bytes that the kernel does not accept immediately arrive later, and in order.
func TestNonblockingSocket(t *testing.T) {
	client, server := inKernel(t)
	var want bytes.Buffer
	for i := 0; !server.Unflushed() || i%10 > 0; i++ { // more than one write remains
		line := fmt.Appendf(nil, "%d %s\n", i, strings.Repeat("x", 5000))
		want.Write(line)
		if err := server.WriteSoon(line); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(client)
		got <- all
	}()
	want.WriteString("more")
	if _, err := server.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if !bytes.Equal(<-got, want.Bytes()) {
		t.Error("it differs")
	}
}

// A writer writes pieces, with or without a wait, or collects several. Beside it, TLS answers the client,
// while it may hold the lock that the next writer needs. No answer waits for the client, whatever it reads,
// and none tears a piece apart. All of it arrives, in order.
func TestAnswersBesideWrites(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range cachetest.Rounds(100, 1000) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			client, server := inMemory(t)
			server.Stall = 0
			var wrote, answers bytes.Buffer
			var got []byte
			var writing sync.WaitGroup
			done := make(chan struct{})
			go func() {
				defer close(done)
				got, _ = io.ReadAll(&slowly{client, rand.New(rand.NewPCG(seed, uint64(round)))})
			}()
			sizes := make([]int, 20)
			for i := range sizes {
				sizes[i] = cachetest.AnySize(random, exchange.PieceSize)
			}
			writing.Go(func() {
				for i, size := range sizes {
					p := bytes.Repeat([]byte{byte('a' + i)}, size)
					wrote.Write(p)
					var err error
					switch i % 4 {
					case 0:
						server.socket.collect()
						_, err = server.socket.Write(p[:size/2])
						time.Sleep(time.Millisecond)
						_, err2 := server.socket.Write(p[size/2:])
						err = errors.Join(err, err2, server.socket.flushNow(), server.Flush())
					case 1:
						err = errors.Join(server.WriteSoon(p), server.Flush())
					default:
						_, err = server.Write(p)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
			for range 100 {
				time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
				began := time.Now()
				if _, err := server.socket.Write([]byte("=ANSWER.")); err != nil || !began.Equal(time.Now()) {
					t.Errorf("an answer waits for %v, %v", time.Since(began), err)
				}
				answers.WriteString("=ANSWER.")
			}
			writing.Wait()
			if err := server.Flush(); err != nil {
				t.Error(err)
			}
			server.Close()
			<-done
			parts := bytes.Split(got, []byte("=ANSWER."))
			if !bytes.Equal(bytes.Join(parts, nil), wrote.Bytes()) || 8*(len(parts)-1) != answers.Len() {
				t.Errorf("round %d: the client has read %d bytes instead of %d, or others", round, len(got), wrote.Len()+answers.Len())
			}
		})
	}
}

// slowly reads in pieces and with pauses.
type slowly struct {
	io.Reader
	random *rand.Rand
}

// Read implements io.Reader.
func (s *slowly) Read(p []byte) (int, error) {
	if s.random.IntN(4) == 0 {
		time.Sleep(time.Duration(s.random.IntN(20)) * time.Millisecond)
	}
	return s.Reader.Read(p[:min(len(p), 1+s.random.IntN(8<<10))])
}

// Answers of TLS to a client that does not read are bounded: after a write without a wait, while a write
// waits for the client, and while writes are collected. Nothing is written after that.
func TestUnreadAnswersAreBounded(t *testing.T) {
	for name, begin := range map[string]func(c *Conn) error{
		"WriteSoon": func(c *Conn) error { return c.WriteSoon(make([]byte, exchange.PieceSize)) },
		"Write": func(c *Conn) error {
			go func() { _, _ = c.Write(make([]byte, 2*exchange.PieceSize)) }()
			synctest.Wait()
			return nil
		},
		"collect": func(c *Conn) error {
			c.socket.collect()
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, server := inMemory(t)
			err := begin(server)
			kept := 0
			for ; err == nil; kept += 100 {
				if kept > leftMax {
					t.Fatalf("%s: %d bytes are kept", name, kept)
				}
				_, err = server.socket.Write(make([]byte, 100))
			}
			if kept < 100 || name == "Write" && kept > exchange.PieceSize+100 {
				t.Errorf("%s: %d bytes are kept", name, kept)
			}
			if !errors.Is(err, errUnread) || server.socket.flushNow() == nil {
				t.Errorf("%s: %v, and then it is written to", name, err)
			}
			server.Close()
		})
	}
}

// A write that the client does not read fails after the stall time, but not earlier, whatever was written
// before. Fasthttp resets the deadline when it passes a connection on. Nothing is written after a partial
// write.
func TestUnreadWriteIsCut(t *testing.T) {
	read := func(c *Conn, client net.Conn) {
		go func() { _, _ = io.ReadFull(client, make([]byte, 2*unread)) }()
		_, _ = c.Write(make([]byte, 2*unread)) // otherwise the test would hang
	}
	for name, before := range map[string]func(c *Conn, client net.Conn){
		"first write": func(*Conn, net.Conn) {},
		"after another": func(c *Conn, client net.Conn) {
			read(c, client)
			time.Sleep(50 * time.Second)
		},
		"after a hijack": func(c *Conn, client net.Conn) {
			read(c, client)
			_ = c.SetDeadline(time.Time{})
		},
		"after a longer stall": func(c *Conn, client net.Conn) {
			c.Stall = time.Hour
			read(c, client)
			c.Stall = time.Minute
		},
		"after none": func(c *Conn, client net.Conn) {
			c.Stall = 0
			read(c, client)
			c.Stall = time.Minute
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := inMemory(t)
				before(server, client)
				began := time.Now()
				if _, err := server.Write(make([]byte, 2*unread)); !isTimeout(err) || time.Since(began) != time.Minute {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				go func() { _, _ = io.Copy(io.Discard, client) }()
				synctest.Wait()
				_ = server.SetWriteDeadline(time.Time{})
				if _, err := server.Write([]byte("x")); !isTimeout(err) {
					t.Errorf("then %v", err)
				}
				server.Close()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // without a stall time, a write has no deadline, not even an earlier one
		client, server := inMemory(t)
		read(server, client)
		server.Stall = 0
		time.AfterFunc(time.Hour, func() { _, _ = io.ReadFull(client, make([]byte, 2*unread)) })
		if _, err := server.Write(make([]byte, 2*unread)); err != nil {
			t.Error(err)
		}
		server.Close()
	})
}

// counting counts writes.
type counting struct {
	*conntest.Socket
	writes atomic.Int64
}

// Write implements net.Conn.
func (c *counting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Socket.Write(p)
}

// WriteNow implements immediate.
func (c *counting) WriteNow(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Socket.WriteNow(p)
}

// The records of a piece are written together. What TLS writes meanwhile comes after them.
func TestRecordsAreWrittenTogether(t *testing.T) {
	theirs, ours := conntest.Pipe(4 * exchange.PieceSize)
	counted := &counting{Socket: ours}
	server, client := New(counted), tls.Client(theirs, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test
	defer server.Close()
	server.Conn = tls.Server(server.socket, &tls.Config{Certificates: certificate(t), DynamicRecordSizingDisabled: true}) //nolint:gosec // a test
	go func() { _ = client.Handshake() }()
	if _, err := server.Handshake(); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 3*exchange.PieceSize)
	for i := range want {
		want[i] = byte(i * i >> 8)
	}
	got := make(chan []byte, 1)
	go func() {
		all := make([]byte, len(want)+len("more"))
		_, _ = io.ReadFull(client, all)
		got <- all
	}()
	before := counted.writes.Load()
	if n, err := server.Write(want); n != len(want) || err != nil {
		t.Fatal(n, err)
	}
	if n := counted.writes.Load() - before; n != 3 {
		t.Errorf("%d writes for three pieces", n)
	}
	if _, err := server.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(<-got, append(want, "more"...)) {
		t.Error("it differs")
	}
}
