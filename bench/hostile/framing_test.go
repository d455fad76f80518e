package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// framing are HTTP/1.1 requests that are too large or broken.
func framing() []behaviour {
	row := func(name string, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "HTTP1: " + name, clients: 8, most: 16, rate: rate, do: do}
	}
	long := func(bytes int) string { return strings.Repeat("x", bytes) }
	return []behaviour{
		row("headers of 60 KiB", 100, texts(func(a *attack, _ int64) string {
			return a.request(http.MethodGet, cachedList+"&limit=1", asAttacker("X-Long", long(60<<10)))
		})),
		row("headers of 1 MiB", 50, texts(func(a *attack, _ int64) string {
			return a.request(http.MethodGet, cachedList+"&limit=1", asAttacker("X-Long", long(1<<20)))
		})),
		row("10,000 headers", 50, texts(func(a *attack, _ int64) string {
			text := a.request(http.MethodGet, cachedList+"&limit=1", asAttacker())
			return text[:len(text)-2] + strings.Repeat("X: y\r\n", 10_000) + "\r\n"
		})),
		row("paths of 60 KiB", 100, texts(func(a *attack, _ int64) string {
			return a.request(http.MethodGet, "/api/v1/"+long(60<<10), asAttacker())
		})),
		row("paths of 1 MiB", 50, texts(func(a *attack, _ int64) string {
			return a.request(http.MethodGet, "/api/v1/"+long(1<<20), asAttacker())
		})),
		row("a line that does not end", 50, texts(func(*attack, int64) string { return long(200 << 10) })),
		row("broken framing", 200, texts(func(a *attack, i int64) string {
			return strings.ReplaceAll(broken[i%int64(len(broken))], "&", "Host: "+a.address+"\r\nAuthorization: Bearer "+tokenOf(attackerUser))
		})),
		row("pipelined, and read", 20, texts(func(a *attack, _ int64) string {
			return strings.Repeat(a.request(http.MethodGet, cachedList+"&limit=1", asAttacker()), 20)
		})),
		row("upgrades to anything", 200, texts(func(a *attack, i int64) string {
			protocols := []string{"h2c", "websocket", "SPDY/3.1", "TLS/1.0", "x"}
			return a.request([]string{http.MethodGet, http.MethodPost}[i%2], []string{cachedWatch, attackedPodsPath, "/version"}[i%3],
				asAttacker("Connection", "Upgrade, HTTP2-Settings", "HTTP2-Settings", "AAMAAABkAAQAAP__", "Upgrade", protocols[i%int64(len(protocols))]))
		})),
	}
}

// broken are requests whose parts contradict each other. The character & stands for the usual
// headers.
var broken = []string{
	"GET " + cachedList + " HTTP/1.1\r\n&\r\nContent-Length: 10\r\nContent-Length: 20\r\n\r\nxxxxxxxxxx",
	"POST " + attackedConfigMaps + " HTTP/1.1\r\n&\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
	"POST " + attackedConfigMaps + " HTTP/1.1\r\n&\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
	"POST " + attackedConfigMaps + " HTTP/1.1\r\n&\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n",
	"POST " + attackedConfigMaps + " HTTP/1.1\r\n&\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
	"POST " + attackedConfigMaps + " HTTP/1.1\r\n&\r\nContent-Length: -1\r\n\r\n",
	"POST " + attackedConfigMaps + " HTTP/1.1\r\n&\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"GET " + cachedList + " HTTP/9.9\r\n&\r\n\r\n",
	"GET " + cachedList + "\r\n\r\n",
	"GET\t" + cachedList + "\tHTTP/1.1\r\n&\r\n\r\n",
	"GET " + cachedList + " HTTP/1.1\n&\n\n",
	"GET " + cachedList + " HTTP/1.1\r\n&\r\n folded: line\r\n\r\n",
	"GET " + cachedList + " HTTP/1.1\r\n&\r\nA\x00B: c\r\n\r\n",
	"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"\r\n\r\n\r\n\r\n",
}

// texts makes each client write a request on a new connection and read the responses, on each of
// its turns.
func texts(text func(a *attack, i int64) string) func(*attack, int) {
	return func(a *attack, _ int) {
		for a.turn() {
			conn, err := a.open(http1)
			if err != nil {
				continue
			}
			sent := text(a, a.next.Add(1))
			// A server may answer before it has received the whole request, and then stop reading.
			a.readers.Go(func() {
				_, _ = io.WriteString(conn, sent)
			})
			a.sent.Add(1)
			a.answers(bufio.NewReader(conn), max(1, strings.Count(sent, " HTTP/1.1\r\nHost")))
			conn.Close()
		}
	}
}

// answers reads at most n whole responses.
func (a *attack) answers(from *bufio.Reader, most int) {
	for range most {
		resp, err := a.answer(from)
		if err != nil {
			return
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil || resp.Close {
			return
		}
	}
}

// made returns a name of an object that does not exist.
func made(i int64) string { return fmt.Sprintf("made-up-%d", i) }
