package conn

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
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

// Bytes that are not accepted immediately arrive later, and in order.
func TestNonblockingSocket(t *testing.T) {
	for name, sockets := range map[string]func(*testing.T) (net.Conn, *Conn){"memory": inMemory, "kernel": inKernel} {
		t.Run(name, func(t *testing.T) {
			client, server := sockets(t)
			var want bytes.Buffer
			for i := 0; !server.Unsettled() || i%10 > 0; i++ { // more than one write remains
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
			if err := server.Settle(); err != nil {
				t.Fatal(err)
			}
			want.WriteString("more")
			if _, err := server.Write([]byte("more")); err != nil {
				t.Fatal(err)
			}
			server.Close()
			if !bytes.Equal(<-got, want.Bytes()) {
				t.Error("it differs")
			}
		})
	}
}

// Write waits for the client. An answer of TLS beside it does not wait, and does not tear it apart.
func TestWriteWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := inMemory(t)
		want := bytes.Repeat([]byte("0123456789"), leftMax/5)
		wrote := make(chan error, 1)
		go func() {
			_, err := server.Write(want)
			wrote <- err
		}()
		synctest.Wait()
		select {
		case err := <-wrote:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		// TLS may answer the client, while it holds the lock that the next writer needs.
		if _, err := server.socket.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want)+len("answer"))
		if _, err := io.ReadFull(client, got); err != nil {
			t.Error(err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		before, after, answered := bytes.Cut(got, []byte("answer"))
		if !answered || !bytes.Equal(append(before, after...), want) {
			t.Error("the client has read something else")
		}
		if err := server.WriteSoon(make([]byte, 2*unread)); err != nil || !server.Unsettled() {
			t.Errorf("it waits: %v", err)
		}
		server.Close()
	})
}

// No writer waits while settle writes the rest, because TLS may respond while it holds its lock.
// But responses to a client that does not read are bounded.
func TestWriteWhileSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, server := inMemory(t)
		server.fill()
		settled := make(chan error, 1)
		go func() { settled <- server.Settle() }()
		synctest.Wait()
		wrote := 0
		for {
			n, err := server.socket.Write(make([]byte, 100))
			if wrote += n; err != nil {
				break
			}
		}
		if wrote == 0 || wrote > exchange.AheadMax {
			t.Errorf("%d bytes were kept", wrote)
		}
		server.Close()
		if err := <-settled; err == nil {
			t.Error("it was settled")
		}
	})
}

// fill keeps more than there is room for while the client does not read.
func (c *Conn) fill() {
	s := c.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.left = bytes.NewBuffer(make([]byte, 2*unread))
}

// A client that does not read is disconnected after the stall time. Nothing is written after a
// partial write.
func TestUnsettledIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := inMemory(t)
		server.fill()
		began := time.Now()
		if err := server.Settle(); !isTimeout(err) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != server.Stall {
			t.Errorf("it was cut after %v", took)
		}
		go func() { _, _ = io.Copy(io.Discard, client) }()
		synctest.Wait()
		_ = server.SetWriteDeadline(time.Time{})
		if _, err := server.Write([]byte("x")); !isTimeout(err) {
			t.Errorf("then %v", err)
		}
		server.Close()
	})
}

// Responses of TLS to a client that does not read are always bounded.
func TestLeftIsBounded(t *testing.T) {
	_, server := inMemory(t)
	for !server.Unsettled() {
		if err := server.WriteSoon(make([]byte, exchange.PieceSize)); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for wrote := 0; err == nil; wrote += 100 {
		if wrote > leftMax {
			t.Fatalf("%d bytes are kept", wrote)
		}
		err = server.WriteSoon(make([]byte, 100))
	}
	if !errors.Is(err, errUnread) {
		t.Error(err)
	}
	server.Close()
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
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := conntest.Pipe(4 * exchange.PieceSize)
	counted := &counting{Socket: ours}
	server, client := New(counted), tls.Client(theirs, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test
	defer server.Close()
	server.Conn = tls.Server(server.socket, &tls.Config{Certificates: []tls.Certificate{pair}, DynamicRecordSizingDisabled: true}) //nolint:gosec // a test
	go func() { _ = client.Handshake() }()
	if _, err := server.Handshake(); err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	for i := range 3 * exchange.PieceSize {
		want.WriteByte(byte(i * i >> 8))
	}
	got, all := make(chan []byte, 1), make([]byte, want.Len()+100*len("more"))
	go func() {
		_, _ = io.ReadFull(client, all)
		got <- all
	}()
	before := counted.writes.Load()
	if n, err := server.Write(want.Bytes()); n != want.Len() || err != nil {
		t.Fatal(n, err)
	}
	if n := counted.writes.Load() - before; n != 3 {
		t.Errorf("%d writes for three pieces", n)
	}
	for range 100 {
		want.WriteString("more")
		if _, err := server.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(<-got, want.Bytes()) {
		t.Error("it differs")
	}
}

// Writes beside a collected one keep the order, and are bounded.
func TestWritesBesideCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := inMemory(t)
		s := server.socket
		long := bytes.Repeat([]byte("x"), 2*unread)
		writes := func(p string) {
			t.Helper()
			if _, err := s.Write([]byte(p)); err != nil {
				t.Fatal(err)
			}
		}
		s.collect()
		writes(string(long))
		writes("1")
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		writes("2")
		settled := make(chan error, 1)
		go func() { settled <- s.settle() }()
		synctest.Wait()
		writes("3")
		got := make(chan []byte, 1)
		go func() {
			all, _ := io.ReadAll(client)
			got <- all
		}()
		if err := <-settled; err != nil {
			t.Fatal(err)
		}
		writes("4")
		server.Close()
		if all := string(<-got); all != string(long)+"1234" {
			t.Errorf("%d bytes, at the end %q", len(all), all[max(0, len(all)-5):])
		}
	})
	_, server := inMemory(t)
	server.socket.collect()
	for n := 0; ; n += 1 << 10 {
		if _, err := server.socket.Write(make([]byte, 1<<10)); err != nil {
			break
		}
		if n > leftMax {
			t.Fatalf("%d bytes are collected", n)
		}
	}
	if server.socket.flush() == nil {
		t.Error("a part is written")
	}
}

// However short a write is that waits for the client, an answer of TLS beside it does not wait.
func TestAnswersBesideAWrite(t *testing.T) {
	for _, size := range []int{1, 1 << 10, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			client, server := inMemory(t)
			if _, err := server.Conn.Write(make([]byte, unread)); err != nil { // the kernel takes no more
				t.Fatal(err)
			}
			wrote := make(chan error, 1)
			go func() {
				_, err := server.Write(make([]byte, size))
				wrote <- err
			}()
			synctest.Wait()
			answered := make(chan error, 1)
			go func() {
				_, err := server.socket.Write([]byte("answer"))
				answered <- err
			}()
			synctest.Wait()
			select {
			case err := <-answered:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Errorf("beside a write of %d bytes, an answer waits for the client", size)
			}
			server.Close()
			client.Close()
			<-wrote
		})
	}
}
