package proxy

import (
	"bufio"
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

// longPath is refused before the client is authenticated, and the connection stays open.
var longPath = "/" + strings.Repeat("x", 100)

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

// greet begins HTTP/2.
func greet(c net.Conn, settings ...http2.Setting) (*http2.Framer, error) {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	f := http2.NewFramer(c, c)
	return f, f.WriteSettings(settings...)
}

// ask2 sends a GET on a stream.
func ask2(f *http2.Framer, stream uint32, path string) error {
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "evil.example"}, {":path", path}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true})
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

// least returns the minimum memory in use over a while, heap and stacks, because stacks shrink only
// during collections.
func least() uint64 {
	best := ^uint64(0)
	for range 8 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		best = min(best, m.HeapAlloc+m.StackInuse)
	}
	return best
}

// A connection of an unauthenticated client costs little memory, whatever the client has sent. With
// TLS, crypto/tls uses 7 KiB of this memory. With HTTP/2, the library uses 14 KiB, and up to 4 KiB
// more for reads and writes.
func TestMemoryOfUnknownConnections(t *testing.T) {
	if cachetest.Race {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 500
	for _, test := range []struct {
		over, behaviour string
		most            uint64 // KiB
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
			before := least()
			end := startCrowd(t, address.String(), n, test.over, test.behaviour)
			defer end()
			waitFor(t, "all are there", func() bool { return s.listening.Connections() == n })
			each := (max(least(), before) - before) / n // memory of earlier tests may be freed now
			t.Logf("%d bytes", each)
			if each > test.most<<10 {
				t.Errorf("%d bytes for each connection, want at most %d KiB", each, test.most)
			}
		})
	}
}
