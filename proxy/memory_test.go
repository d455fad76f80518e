//go:build verify && !race

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// asCrowd makes the test binary run many clients. They run in a separate process so that their
// memory does not count as the server's. Its value is an address, the number of clients, "tcp",
// "tls" or "h2", and a behaviour.
const asCrowd = "WATCHPROXY_TEST_AS_CROWD"

// runCrowd connects the clients and runs the behaviour of each client. It reports that this is
// done, and waits for the end of its input.
func runCrowd(order string) error {
	fields := strings.Fields(order)
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		return err
	}
	all := make([]net.Conn, n)
	for i := range all {
		if all[i], err = connectOne(fields[0], fields[2]); err == nil {
			err = behaviours[fields[3]](all[i])
		}
		if err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(all)
	return err
}

func connectOne(address, over string) (net.Conn, error) {
	if over == "tcp" {
		return net.Dial("tcp", address)
	}
	protocol := map[string]string{"tls": "http/1.1", "h2": "h2"}[over]
	return tls.Dial("tcp", address, insecure(protocol))
}

// refused is a request for longPath.
var refused = "GET " + longPath + " HTTP/1.1\r\nHost: localhost\r\n\r\n"

// behaviours are the actions of clients before they become silent.
var behaviours = map[string]func(net.Conn) error{
	"silent": func(net.Conn) error { return nil },
	"half": func(c net.Conn) error {
		_, err := io.WriteString(c, refused[:len(refused)-2]+"X-Long: "+strings.Repeat("x", 400))
		return err
	},
	"answered": func(c net.Conn) error {
		if _, err := io.WriteString(c, refused); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	},
	"pipelined": func(c net.Conn) error {
		if _, err := io.WriteString(c, refused+refused[:20]); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	},
	"preface": func(c net.Conn) error {
		_, err := greet(c)
		return err
	},
	"frame": func(c net.Conn) error { // the first bytes of a frame
		f, err := greet(c)
		if err != nil {
			return err
		}
		return f.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, nil)
	},
	"answered2": func(c net.Conn) error {
		f, err := greet(c)
		if err != nil {
			return err
		}
		if err := ask2(f, 1, longPath); err != nil {
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
	},
}

// startCrowd starts clients and waits until all clients have acted.
func startCrowd(t *testing.T, address string, n int, over, behaviour string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s %s", asCrowd, address, n, over, behaviour))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = stdin.Close()
		_ = cmd.Wait()
		cancel()
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		end()
		t.Fatalf("the clients: %q %v", line, err)
	}
	return end
}

// init runs the clients instead of the tests in a process that startCrowd has started.
func init() {
	if order := os.Getenv(asCrowd); order != "" {
		if err := runCrowd(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serveStrangers runs a server that refuses long paths before it authenticates the client.
func serveStrangers(t *testing.T, overTLS bool, limits exchange.Limits) (*Server, net.Addr) {
	t.Helper()
	limits.URIBytes = 64
	o := Options{Stall: time.Minute, Limits: limits, AnyHost: true}
	if overTLS {
		o.TLS = selfSigned()
	}
	return serveSocket(t, forwardsAll{}, http.NotFound, o)
}

// A connection of an unauthenticated client costs little memory, whatever the client has sent. With
// TLS, crypto/tls uses 7 KiB of this memory. With HTTP/2, the library uses 14 KiB, and up to 4 KiB
// more for reads and writes.
func TestMemoryOfUnknownConnections(t *testing.T) {
	const n = 500
	for _, test := range []struct {
		over, behaviour string
		most            int64 // KiB
	}{
		{"tcp", "silent", 8},
		{"tcp", "half", 8},
		{"tcp", "answered", 8},
		{"tcp", "pipelined", 8},
		{"tls", "silent", 12},
		{"tls", "half", 12},
		{"tls", "answered", 12},
		{"tls", "pipelined", 12},
		{"h2", "silent", 28},
		{"h2", "preface", 28},
		{"h2", "frame", 28},
		{"h2", "answered2", 28},
	} {
		t.Run(test.over+" "+test.behaviour, func(t *testing.T) {
			s, address := serveStrangers(t, test.over != "tcp", testLimits())
			// The first clients fill caches.
			startCrowd(t, address.String(), 20, test.over, test.behaviour)()
			waitFor(t, "they have gone", func() bool { return s.listening.Connections() == 0 })
			before := cachetest.Heap()
			end := startCrowd(t, address.String(), n, test.over, test.behaviour)
			defer end()
			waitFor(t, "all are there", func() bool { return s.listening.Connections() == n })
			each := (cachetest.Heap() - before) / n
			t.Logf("%d bytes", each)
			if each > test.most<<10 {
				t.Errorf("%d bytes for each connection, want at most %d KiB", each, test.most)
			}
		})
	}
}

// Unread watches hold one piece each, whatever the number and size of the events. The connection
// and the stream use additional memory at both ends.
func TestUnreadWatchesHoldLittle(t *testing.T) {
	const (
		watches = 100
		stream  = 48 << 10 // for a stream; over HTTP/1 for a connection and its client
	)
	for _, events := range []struct{ n, size int }{{128, 30 << 10}, {40, 1 << 20}} {
		c, _ := cachetest.Roomy(t)
		for i := range events.n {
			cachetest.Apply(t, c, cachetest.Sized(t, uint64(i+2), events.size))
		}
		for protocol, open := range map[string]func(address net.Addr){
			"HTTP/2": func(address net.Addr) { unreadHTTP2(t, address, watches, watchTarget+"1") },
			"HTTP/1": func(address net.Addr) {
				for range watches {
					unreadHTTP1(t, address, watchTarget+"1")
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, %d KiB", protocol, events.size>>10), func(t *testing.T) {
				_, address := serveSocket(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, Options{Stall: time.Minute, Limits: testLimits(), AnyHost: true, TLS: selfSigned()})
				delivered := c.Stats().Delivered
				before := cachetest.Heap()
				open(address)
				// Each watch has polled until it was blocked. Over HTTP/1, the kernel keeps a few
				// pieces.
				waitFor(t, "all watches have begun", func() bool { return c.Stats().Delivered-delivered >= watches })
				var held int64
				for still, was := 0, uint64(0); still < 5; still++ {
					if held = cachetest.Heap() - before; held > watches*(exchange.ChunkKeep+stream) {
						t.Fatalf("%d watches hold %d KiB each", watches, held/watches>>10)
					}
					if now := c.Stats().Delivered; now != was {
						was, still = now, 0
					}
				}
				t.Logf("%d KiB each", held/watches>>10)
			})
		}
	}
}

// unreadHTTP2 opens watches on one connection. Its client gives no window for data.
func unreadHTTP2(t *testing.T, address net.Addr, n int, target string) {
	t.Helper()
	c, err := tls.Dial(address.Network(), address.String(), insecure("h2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	send(t, c, http2.ClientPreface)
	framer := http2.NewFramer(c, c)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, c)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, kv := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", target}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]}); err != nil {
				t.Fatal(err)
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// unreadHTTP1 opens a watch on its own connection. The client reads nothing.
func unreadHTTP1(t *testing.T, address net.Addr, target string) {
	t.Helper()
	c, err := net.Dial(address.Network(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	send(t, tls.Client(c, insecure()), "GET "+target+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
}
