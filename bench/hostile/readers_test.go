package hostile

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func itoa(n int) string { return strconv.Itoa(n) }

// readers are clients that do not read responses, or read very slowly.
func readers() (all []behaviour) {
	const rate = 200
	for _, what := range []struct {
		name, path string
		most       int
	}{
		{"a list", cachedList, 400},
		{"a forwarded list", forwardedList + "?fieldSelector=spec.nodeName%21%3Dnone%2Cstatus.nominatedNodeName%3D", 100},
		{"OpenAPI", "/openapi/v2", 400},
		{"a watch", cachedWatch, 1000},
		{"a forwarded watch", forwardedWatch, 400},
	} {
		for _, how := range []struct {
			name string
			read func(a *attack, conn net.Conn, from *bufio.Reader)
		}{
			{"never reads", never},
			{"reads a byte a second of", byteBySecond},
			{"resets in the middle of", reset},
		} {
			all = append(all, behaviour{
				name: how.name + " " + what.name, clients: 50, most: what.most, rate: rate,
				// By design, an unread watch waits for its client up to the watch's own timeout.
				lingers: strings.HasPrefix(how.name, "never") && !strings.HasSuffix(what.name, "watch"),
				do:      reads(what.path, how.read),
			})
		}
	}
	all = append(all, behaviour{
		name: "never reads the answers to 100 pipelined requests", clients: 30, most: 300, rate: rate, lingers: true,
		do: func(a *attack, _ int) {
			if !a.turn() {
				return
			}
			if conn, err := a.open(http1); err == nil {
				_ = a.write(conn, strings.Repeat(a.request(http.MethodGet, cachedList, asAttacker()), 100))
				a.stay()
			}
		},
	}, behaviour{
		name: "events of 30 KB for watches that nobody reads", clients: 100, most: 300, rate: 200,
		do:     reads(attackedConfigMaps+"?watch=true&resourceVersion=0&timeoutSeconds=600", never),
		beside: writeLarge,
	})
	for i := range all {
		all[i].small = true
	}
	return all
}

// reads sends a request and reads the response with the given function.
func reads(path string, read func(a *attack, conn net.Conn, from *bufio.Reader)) func(*attack, int) {
	return func(a *attack, _ int) {
		for again := true; again && a.turn(); {
			conn, from, resp := a.asks(http.MethodGet, path, asAttacker())
			if resp == nil {
				return
			}
			read(a, conn, from)
			again = a.gone(conn)
		}
	}
}

// gone reports whether the client itself has left.
func (a *attack) gone(conn net.Conn) bool {
	s, ok := underneath(conn).(*socket)
	if !ok {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.mu.conns[s.Conn]
}

// underneath returns the connection below TLS.
func underneath(conn net.Conn) net.Conn {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return secure.NetConn()
	}
	return conn
}

func never(a *attack, _ net.Conn, _ *bufio.Reader) { a.stay() }

func byteBySecond(a *attack, _ net.Conn, from *bufio.Reader) {
	for a.ctx.Err() == nil {
		if _, err := from.ReadByte(); err != nil {
			if a.ctx.Err() == nil {
				a.got(cut)
			}
			return
		}
		cluster.Pause(a.ctx, time.Second)
	}
}

// reset reads a little and then resets the connection: the peer detects this immediately, and data
// in flight is dropped.
func reset(_ *attack, conn net.Conn, from *bufio.Reader) {
	const some = 4 << 10
	_, _ = io.CopyN(io.Discard, from, some)
	if s, ok := underneath(conn).(*socket); ok {
		_ = s.Conn.(*net.TCPConn).SetLinger(0)
	}
	underneath(conn).Close()
}
