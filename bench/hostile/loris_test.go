package hostile

import (
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// loris are clients that send as little as possible, in each phase of a request.
func loris() []behaviour {
	const rate = 400
	clientHello := string([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}) // of a record of 512 bytes
	row := func(name string, clients, most int, do func(*attack, int)) behaviour {
		return behaviour{name: "slow: " + name, clients: clients, most: most, rate: rate, do: do, lingers: true}
	}
	return []behaviour{
		row("connects and says nothing", 200, 4000, says("")),
		row("half a ClientHello, byte by byte", 200, 2000, says(clientHello)),
		row("TLS, then nothing, HTTP1", 150, 2000, handshakes(http1, "")),
		row("TLS, then nothing, HTTP2", 150, 2000, handshakes(http2Protocol, "")),
		row("half of the HTTP2 preface", 150, 1000, handshakes(http2Protocol, "PRI * HTTP/2.0\r\n")),
		row("header byte by byte", 100, 1000, drips(func(a *attack) string {
			return a.request(http.MethodGet, cachedList, asAttacker("X-Long", strings.Repeat("x", 4<<10)))
		}, 0)),
		row("a header field after the other", 100, 1000, drips(func(a *attack) string {
			text := a.request(http.MethodGet, cachedList, asAttacker())
			return text[:len(text)-2] + strings.Repeat("X: y\r\n", 1000)
		}, 20)),
		row("body byte by byte", 100, 500, drips(func(a *attack) string {
			return posted(a, 100<<10, 0)
		}, 600)),
		row("body of 3 MiB, most of it sent and then no more", 20, 200, drips(func(a *attack) string {
			return posted(a, 3<<20, 2<<20)
		}, 3<<20)),
		row("chunks of one byte", 100, 500, drips(func(a *attack) string {
			text := a.request(http.MethodPost, attackedConfigMaps, asAttacker("Content-Type", "application/json", "Transfer-Encoding", "chunked"))
			return text + strings.Repeat("1;extension=value\r\nx\r\n", 1000)
		}, 400)),
		row("waits for 100 Continue and then says nothing", 100, 1000, handshakes(http1, "POST "+attackedConfigMaps+
			" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+tokenOf(attackerUser)+"\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")),
	}
}

// posted sends a forwarded request that announces a body and sends only a part of it.
func posted(a *attack, announced, brought int) string {
	h := asAttacker("Content-Type", "application/json")
	h["Content-Length"] = []string{itoa(announced)}
	return a.request(http.MethodPost, attackedConfigMaps, h) + strings.Repeat(" ", brought)
}

// says connects and writes a text one byte at a time.
func says(text string) func(*attack, int) {
	return func(a *attack, _ int) {
		if !a.turn() {
			return
		}
		conn, err := a.dial()
		if err != nil {
			return
		}
		a.sent.Add(1)
		drip(a, conn, text)
	}
}

// handshakes writes a text after a TLS handshake.
func handshakes(protocol, text string) func(*attack, int) {
	return func(a *attack, _ int) {
		if !a.turn() {
			return
		}
		conn, err := a.open(protocol)
		if err != nil {
			return
		}
		if a.write(conn, text) == nil {
			a.awaitEnd(conn)
		}
	}
}

// drips writes the beginning of a request immediately, and the rest one byte at a time.
func drips(request func(a *attack) string, atOnce int) func(*attack, int) {
	return func(a *attack, _ int) {
		if !a.turn() {
			return
		}
		conn, err := a.open(http1)
		if err != nil {
			return
		}
		text := request(a)
		atOnce := min(atOnce, len(text))
		if a.write(conn, text[:atOnce]) == nil {
			drip(a, conn, text[atOnce:])
		}
	}
}

// drip writes a byte five times a second. Then it waits until the row or the connection is over.
func drip(a *attack, conn net.Conn, text string) {
	const every = 200 * time.Millisecond
	for len(text) > 0 && a.ctx.Err() == nil {
		if _, err := io.WriteString(conn, text[:1]); err != nil {
			if a.ctx.Err() == nil {
				a.got(cut)
			}
			return
		}
		text = text[1:]
		cluster.Pause(a.ctx, every)
	}
	a.awaitEnd(conn)
}

// awaitEnd waits until the connection or the row is over.
func (a *attack) awaitEnd(conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn)
	if a.ctx.Err() == nil {
		a.got(cut)
		conn.Close()
	}
}
