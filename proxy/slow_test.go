package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// noView is a path that the proxy refuses itself. Over HTTP/1.1, the connection stays open.
const noView = "/views/none/version"

// readsBodies is an upstream that responds after it has read the body.
func readsBodies(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "x")
}

// slowClient is a client in a bubble. The server's connections are pipes.
type slowClient struct {
	net.Conn
	t      *testing.T
	frames *http2.Framer
	pings  bool
}

func (c *slowClient) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Error(err)
	}
}

// drip sends a byte a second until a write fails.
func (c *slowClient) drip(text string) {
	for i := range len(text) {
		if _, err := io.WriteString(c, text[i:i+1]); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// answer reads one response.
func (c *slowClient) answer() {
	c.t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		c.t.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
}

// greet begins HTTP/2.
func (c *slowClient) greet(settings ...http2.Setting) {
	c.t.Helper()
	var err error
	if c.frames, err = greet(c, settings...); err != nil {
		c.t.Error(err)
	}
}

// pong responds to PINGs if the client does so. It does not wait, as a pipe has no room for an answer that
// the server no longer reads.
func (c *slowClient) pong(f http2.Frame) {
	if ping, ok := f.(*http2.PingFrame); ok && c.pings && !ping.IsAck() {
		data := ping.Data
		go func() { _ = http2.NewFramer(c, nil).WritePing(true, data) }() // the next read fails too
	}
}

// ended reads until the connection or the first stream ends.
func (c *slowClient) ended() {
	if c.frames == nil {
		_, _ = io.Copy(io.Discard, c)
		return
	}
	for {
		f, err := c.frames.ReadFrame()
		if err != nil {
			return
		}
		c.pong(f)
		_, reset := f.(*http2.RSTStreamFrame)
		if reset || f.Header().StreamID == 1 && f.Header().Flags.Has(http2.FlagDataEndStream) {
			return
		}
	}
}

// slowClients are slow in different ways. Each of them has the time after which the server
// disconnects it. The test reads from a client once the client has begun.
var slowClients = map[string]struct {
	over  string // tcp, handshake: TLS before its handshake, tls, h2
	begin func(c *slowClient)
	then  func(c *slowClient) // runs meanwhile; may be nil
	pings bool                // the client responds to PINGs
	want  time.Duration
}{
	"tcp: silent":             {over: "tcp", want: 30 * time.Second},
	"tcp: head":               {over: "tcp", then: drips(veryLongHead), want: 30 * time.Second},
	"tcp: empty lines":        {over: "tcp", then: drips(strings.Repeat("\r\n", 500)), want: 8 * time.Second}, // after eight bytes
	"tcp: body":               {over: "tcp", begin: posts("Content-Length: 1000"), then: drips(strings.Repeat("x", 1000)), want: 30 * time.Second},
	"tcp: chunks":             {over: "tcp", begin: posts("Transfer-Encoding: chunked"), then: drips(strings.Repeat("1\r\nx\r\n", 500)), want: time.Minute},
	"tcp: next request":       {over: "tcp", begin: asks("/version"), want: 3 * time.Minute},
	"tcp: next head":          {over: "tcp", begin: asks("/version"), then: drips(veryLongHead), want: 30 * time.Second},
	"tcp: next, refused":      {over: "tcp", begin: asks(noView), want: 3 * time.Minute},
	"tcp: next head, refused": {over: "tcp", begin: asks(noView), then: drips(veryLongHead), want: 30 * time.Second},
	"tcp: pipelined head": {over: "tcp", begin: func(c *slowClient) {
		go c.send("GET " + noView + " HTTP/1.1\r\nHost: localhost\r\n\r\nGET /")
		c.answer()
	}, want: 30 * time.Second},
	"tls: silent":    {over: "handshake", want: 10 * time.Second},
	"tls: handshake": {over: "handshake", then: drips("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 500)), want: 10 * time.Second},
	"tls: no head":   {over: "tls", want: 30 * time.Second},
	"tls: head":      {over: "tls", then: drips(veryLongHead), want: 30 * time.Second},
	"tls: body":      {over: "tls", begin: posts("Content-Length: 1000"), then: drips(strings.Repeat("x", 1000)), want: 30 * time.Second},
	"tls: next":      {over: "tls", begin: asks("/version"), want: 3 * time.Minute},
	"tls: next head": {over: "tls", begin: asks("/version"), then: drips(veryLongHead), want: 30 * time.Second},
	"h2: silent":     {over: "h2", want: 10 * time.Second},
	"h2: preface":    {over: "h2", then: drips(http2.ClientPreface), want: 10 * time.Second},
	"h2: settings":   {over: "h2", then: func(c *slowClient) { c.send(http2.ClientPreface) }, want: 2 * time.Second},
	"h2: frame":      {over: "h2", begin: greets, then: drips("\x00\x10\x00\x01\x04\x00\x00\x00\x01" + strings.Repeat("x", 1000)), want: 45 * time.Second},
	"h2: headers in pieces": {over: "h2", begin: greets, then: func(c *slowClient) {
		c.send("\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82")
		for c.frames.WriteContinuation(1, false, nil) == nil {
			time.Sleep(time.Second)
		}
	}, want: 45 * time.Second},
	"h2: no request": {over: "h2", begin: greets, pings: true, want: 3*time.Minute + time.Second},
	"h2: body": {over: "h2", begin: greets, then: func(c *slowClient) {
		p := http2.HeadersFrameParam{StreamID: 1, EndHeaders: true}
		if err := openStream(c.frames, p, "POST", "/version", "content-type", "application/json"); err != nil {
			c.t.Error(err)
		}
		for c.frames.WriteData(1, false, []byte("x")) == nil {
			time.Sleep(time.Second)
		}
	}, want: time.Minute},
	"h2: unread refusal": {over: "h2", pings: true, begin: shuts, then: gets(noView), want: time.Minute},
	"h2: unread answer":  {over: "h2", pings: true, begin: shuts, then: gets("/version"), want: time.Minute},
}

var veryLongHead = "GET /version HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 1000)

func drips(text string) func(*slowClient) { return func(c *slowClient) { c.drip(text) } }

func asks(path string) func(*slowClient) {
	return func(c *slowClient) {
		c.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
		c.answer()
	}
}

func posts(length string) func(*slowClient) {
	return func(c *slowClient) {
		c.send("POST /version HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + length + "\r\n\r\n")
	}
}

func greets(c *slowClient) { c.greet() }

func shuts(c *slowClient) { c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) }

// gets sends a GET on the first stream.
func gets(path string) func(*slowClient) {
	return func(c *slowClient) {
		if err := ask2(c.frames, 1, path); err != nil {
			c.t.Error(err)
		}
	}
}

// Each slow transfer has one deadline from its first byte to its last, not one for each piece.
func TestSlowClientsAreCut(t *testing.T) {
	for name, slow := range slowClients {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, l := serveSlow(t, slow.over != "tcp")
				client := dialSlow(t, l, slow.over)
				client.pings = slow.pings
				if slow.begin != nil {
					slow.begin(client)
				}
				began := time.Now()
				var meanwhile sync.WaitGroup
				if slow.then != nil {
					meanwhile.Go(func() { slow.then(client) })
				}
				client.ended()
				if took := time.Since(began); took < slow.want-time.Second || took > slow.want+time.Second {
					t.Errorf("cut after %v, want %v", took, slow.want)
				}
				client.Close()
				meanwhile.Wait()
			})
		})
	}
}

// serveSlow runs a server for slow clients.
func serveSlow(t *testing.T, overTLS bool) (*Server, *rawListener) {
	t.Helper()
	o := Options{Fixed: Fixed{AnyHost: true, Strangers: 32 << 20}, Limits: testLimits()}
	o.Limits.Stall = 5 * time.Minute
	o.Views = map[string]*exchange.View{"slim": {Name: "slim"}}
	o.Limits.Read, o.Limits.Idle = 30*time.Second, 3*time.Minute
	if overTLS {
		o.TLS = selfSigned()
	}
	return serveTo(t, forwardsAll{}, readsBodies, o)
}

// dialSlow connects a client.
func dialSlow(t *testing.T, l *rawListener, over string) *slowClient {
	t.Helper()
	protocol := map[string]string{"tls": "http/1.1", "h2": "h2"}[over]
	if protocol == "" {
		return &slowClient{Conn: dial(t, l), t: t}
	}
	return &slowClient{Conn: dialTLS(t, l, protocol), t: t}
}

// greet begins HTTP/2.
func greet(c net.Conn, settings ...http2.Setting) (*http2.Framer, error) {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	f := http2.NewFramer(c, c)
	return f, f.WriteSettings(settings...)
}

// openStream sends the header of a request, with pairs of a field's name and value.
func openStream(f *http2.Framer, p http2.HeadersFrameParam, method, path string, more ...string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]string{":method", method, ":scheme", "https", ":authority", "localhost", ":path", path}, more...)
	for pair := range slices.Chunk(fields, 2) {
		// A write to memory does not fail.
		_ = encoder.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]})
	}
	p.BlockFragment = block.Bytes()
	return f.WriteHeaders(p)
}

// ask2 sends a GET on a stream.
func ask2(f *http2.Framer, stream uint32, path string) error {
	return openStream(f, http2.HeadersFrameParam{StreamID: stream, EndStream: true, EndHeaders: true}, "GET", path)
}
