package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// attack is a running row, with the state that its clients share.
type attack struct {
	behaviour
	*target
	w       *world
	ctx     context.Context // ends with the row
	clients int
	ticker  *time.Ticker
	sent    atomic.Int64
	next    atomic.Int64 // counter for made-up names
	readers sync.WaitGroup

	mu struct {
		sync.Mutex
		codes map[string]int
		conns map[net.Conn]bool // open
		bad   map[string]int    // counts of forbidden responses
	}
}

func (w *world) newAttack(ctx context.Context, b behaviour) *attack {
	a := &attack{behaviour: b, target: w.front, w: w, ctx: ctx, clients: b.count(), ticker: time.NewTicker(b.every())}
	a.mu.codes, a.mu.conns, a.mu.bad = map[string]int{}, map[net.Conn]bool{}, map[string]int{}
	return a
}

// run runs the clients until the row is over. Their connections are still open when run returns.
func (a *attack) run() {
	defer a.ticker.Stop()
	stop := context.AfterFunc(a.ctx, a.wake)
	defer stop()
	var going sync.WaitGroup
	if a.beside != nil {
		going.Go(func() { a.beside(a) })
	}
	for i := range a.clients {
		going.Go(func() { a.do(a, i) })
	}
	going.Wait()
	a.readers.Wait()
}

// wake interrupts all reads and writes.
func (a *attack) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for conn := range a.mu.conns {
		_ = conn.SetDeadline(time.Unix(1, 0))
	}
}

// leave closes the connections that the clients have left open.
func (a *attack) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for conn := range a.mu.conns {
		conn.Close()
	}
	clear(a.mu.conns)
}

// turn waits for the client's turn, at the rate of the row. It returns false when the row is over.
func (a *attack) turn() bool {
	if a.ctx.Err() != nil {
		return false
	}
	select {
	case <-a.ticker.C:
		return a.ctx.Err() == nil
	case <-a.ctx.Done():
		return false
	}
}

// stay waits until the row is over.
func (a *attack) stay() { <-a.ctx.Done() }

// got counts a response, or an error if there was no response. After the end of the row it counts
// only forbidden responses, because the end itself causes errors.
func (a *attack) got(code string) {
	forbidden := slices.ContainsFunc(a.never, func(begin string) bool { return strings.HasPrefix(code, begin) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx.Err() == nil || forbidden {
		a.mu.codes[code]++
	}
	if forbidden {
		a.mu.bad[code]++
	}
}

// codes returns the counts of responses as text.
func (a *attack) codes() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, code := range slices.Sorted(maps.Keys(a.mu.codes)) {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s: %d", code, a.mu.codes[code])
	}
	return b.String()
}

// The errors that are counted if there is no response.
const (
	cut     = "cut" // the connection ended
	noEntry = "no connection"
)

// socket is a connection. If the client does not close the connection, the row does so at its end.
type socket struct {
	net.Conn
	a *attack
}

// Close implements net.Conn.
func (s *socket) Close() error {
	s.a.mu.Lock()
	delete(s.a.mu.conns, s.Conn)
	s.a.mu.Unlock()
	return s.Conn.Close()
}

// dial opens a TCP connection to the proxy.
func (a *attack) dial() (net.Conn, error) { return a.dialTo(a.address) }

func (a *attack) dialTo(address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: limit, KeepAlive: -1}
	conn, err := dialer.DialContext(a.ctx, "tcp", address)
	if err != nil {
		a.got(noEntry)
		return nil, err
	}
	if a.small {
		const buffer = 4 << 10
		_ = conn.(*net.TCPConn).SetReadBuffer(buffer)
	}
	a.mu.Lock()
	a.mu.conns[conn] = true
	if a.ctx.Err() != nil {
		_ = conn.SetDeadline(time.Unix(1, 0))
	}
	a.mu.Unlock()
	return &socket{conn, a}, nil
}

// open opens a TLS connection for the given protocol.
func (a *attack) open(protocol string) (net.Conn, error) {
	conn, err := a.dial()
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // loopback
		NextProtos:         []string{protocol},
	})
	if err := secure.HandshakeContext(a.ctx); err != nil {
		a.got(cut)
		conn.Close()
		return nil, err
	}
	return secure, nil
}

const http1, http2Protocol = "http/1.1", "h2"

// asks sends a GET over HTTP/1.1 on a new connection, and reads only the response's head. The
// connection stays open. It reports whether there was a response.
func (a *attack) asks(path string, header http.Header) bool {
	conn, err := a.open(http1)
	if err != nil {
		return false
	}
	var text strings.Builder
	fmt.Fprintf(&text, "GET %s HTTP/1.1\r\nHost: %s\r\n", path, a.address)
	_ = header.Write(&text) // does not fail
	a.sent.Add(1)
	var resp *http.Response
	if _, err = io.WriteString(conn, text.String()+"\r\n"); err == nil {
		resp, err = http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), nil)
	}
	if err != nil {
		a.got(cut)
		conn.Close()
		return false
	}
	a.got(strconv.Itoa(resp.StatusCode))
	return true
}

// client returns an http.Client with its own connections, which end with the row.
func (a *attack) client(protocol string) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(protocol == http1)
	protocols.SetHTTP2(protocol == http2Protocol)
	tr := &http.Transport{
		Protocols: &protocols, DisableCompression: true, MaxResponseHeaderBytes: 1 << 20,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return a.open(protocol) },
	}
	context.AfterFunc(a.ctx, tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// ask sends a request and reads the whole response.
func (a *attack) ask(c *http.Client, method, target string, header http.Header, body io.Reader) {
	if resp := a.send(c, method, target, header, body); resp != nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// send sends a request, and returns the response with its body unread.
func (a *attack) send(c *http.Client, method, target string, header http.Header, body io.Reader) *http.Response {
	req, err := http.NewRequestWithContext(a.ctx, method, "https://"+a.address, body)
	if err != nil {
		a.got("not sent: " + err.Error())
		return nil
	}
	req.URL.Opaque, req.URL.RawQuery, _ = strings.Cut(target, "?")
	if header != nil {
		req.Header = header.Clone()
	}
	if host := header.Get("Host"); host != "" {
		req.Host = host
		req.Header.Del("Host")
	}
	a.sent.Add(1)
	resp, err := c.Do(req)
	if err != nil {
		if a.ctx.Err() == nil {
			a.got(cut)
		}
		return nil
	}
	a.got(strconv.Itoa(resp.StatusCode))
	return resp
}

// each makes every client send a request on each of its turns. The function returns the request.
func each(protocol string, request func(a *attack, i int64) (method, target string, header http.Header)) func(*attack, int) {
	return func(a *attack, _ int) {
		c := a.client(protocol)
		for a.turn() {
			method, target, header := request(a, a.next.Add(1))
			a.ask(c, method, target, header, nil)
		}
	}
}

// gets is each for GETs of the user attacker.
func gets(protocol string, target func(i int64) string, fields ...string) func(*attack, int) {
	return each(protocol, func(_ *attack, i int64) (string, string, http.Header) {
		return http.MethodGet, target(i), asAttacker(fields...)
	})
}

// spent returns the processor time so far of the attackers, the proxy and the apiserver.
func (a *attack) spent() (s [3]time.Duration, err error) {
	own, err := cluster.CPUOf(ownPID)
	if err != nil {
		return s, err
	}
	proxy, err := a.proxy.CPU()
	if err != nil {
		return s, err
	}
	api, err := a.w.api.CPU()
	return [3]time.Duration{own, proxy, api}, err
}
