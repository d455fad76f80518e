//go:build verify && !race

package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// refused is a request that is refused before the client is authenticated.
const refused = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: authorization\r\n\r\n"

// answered sends a text and reads one response.
func answered(text string) func(net.Conn) error {
	return func(c net.Conn) error {
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}

func silent(net.Conn) error { return nil }

func half(c net.Conn) error {
	_, err := io.WriteString(c, refused[:len(refused)-2]+"X-Long: "+strings.Repeat("x", 400))
	return err
}

func preface(c net.Conn) error {
	_, err := greet(c)
	return err
}

// frame sends the first bytes of a frame.
func frame(c net.Conn) error {
	f, err := greet(c)
	if err != nil {
		return err
	}
	return f.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, nil)
}

func answeredHTTP2(c net.Conn) error {
	f, err := greet(c)
	if err != nil {
		return err
	}
	if err := ask2(f, 1, noView); err != nil {
		return err
	}
	for {
		switch frame, err := f.ReadFrame(); {
		case err != nil:
			return err
		case frame.Header().Flags.Has(http2.FlagDataEndStream) && frame.Header().StreamID == 1:
			return nil
		}
	}
}

// startCrowd connects clients. Each of them does something and then becomes silent. Only their
// sockets stay in memory.
func startCrowd(t *testing.T, address net.Addr, n int, over string, do func(net.Conn) error) (end func()) {
	t.Helper()
	sockets := make([]net.Conn, n)
	for i := range sockets {
		socket, err := net.Dial(address.Network(), address.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { socket.Close() })
		sockets[i] = socket
		c := socket
		if over != "tcp" {
			over := tls.Client(socket, insecure(map[string]string{"tls": "http/1.1", "h2": "h2"}[over]))
			if err := over.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			c = over
		}
		if err := do(c); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	return func() {
		for _, socket := range sockets {
			_ = socket.Close()
		}
	}
}

// A connection of an unauthenticated client costs little memory, whatever the client has sent. With
// TLS, crypto/tls uses 7 KiB of this memory. With HTTP/2, the library uses 14 KiB, and up to 4 KiB
// more for reads and writes. The client's socket uses less than 1 KiB.
func TestMemoryOfUnknownConnections(t *testing.T) {
	const n = 500
	for _, test := range []struct {
		over, what string
		do         func(net.Conn) error
		most       int64 // KiB
	}{
		{"tcp", "silent", silent, 8},
		{"tcp", "half", half, 8},
		{"tcp", "answered", answered(refused), 8},
		{"tcp", "pipelined", answered(refused + refused[:20]), 8},
		{"tls", "silent", silent, 13},
		{"tls", "half", half, 13},
		{"tls", "answered", answered(refused), 13},
		{"tls", "pipelined", answered(refused + refused[:20]), 13},
		{"h2", "silent", silent, 28},
		{"h2", "preface", preface, 28},
		{"h2", "frame", frame, 28},
		{"h2", "answered", answeredHTTP2, 28},
	} {
		t.Run(test.over+" "+test.what, func(t *testing.T) {
			options := testOptions()
			options.Views = map[string]*exchange.View{"slim": {Name: "slim"}}
			if test.over == "tcp" {
				options.TLS = nil
			}
			s, address := serveSocket(t, forwardsAll{}, http.NotFound, options)
			// The first clients fill caches.
			startCrowd(t, address, 20, test.over, test.do)()
			waitFor(t, "they have gone", func() bool { return s.listening.Connections() == 0 })
			before := cachetest.Heap()
			startCrowd(t, address, n, test.over, test.do)
			waitFor(t, "all are there", func() bool { return s.listening.Connections() == n })
			each := (cachetest.Heap() - before) / n
			t.Logf("%d bytes", each)
			if each > test.most<<10 {
				t.Errorf("%d bytes for each connection, want at most %d KiB", each, test.most)
			}
		})
	}
}
