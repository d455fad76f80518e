package hostile

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// reviewed are the programs of a review, with which one client took memory or places from all
// others.
func reviewed() []behaviour {
	row := func(name string, clients, most, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "taking: " + name, clients: clients, most: most, rate: rate, do: do}
	}
	// The cache has only version v1 of Tables.
	forwarded := asAttacker("Accept", "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json")
	stranger := func(i int64) http.Header {
		h := bearer(made(i))
		h.Set("Content-Type", "application/json")
		return h
	}
	return []behaviour{
		row("bodies of strangers over HTTP2", 8, 100, 200, streams(100, nil, func(f *frames, _ int) bool {
			stream, ok := f.request(http.MethodPost, attackedConfigMaps, stranger(f.a.next.Add(1)), false)
			for range 4 {
				ok = ok && f.frame(func() error { return f.WriteData(stream, false, make([]byte, 16<<10)) })
			}
			return ok
		})).refused(),
		row("headers of strangers over HTTP2", 4, 16, 100, streams(100, nil, func(f *frames, _ int) bool {
			h := stranger(f.a.next.Add(1))
			for i := range 15 {
				h.Add("x-"+made(int64(i)), strings.Repeat("~", 4<<10))
			}
			_, ok := f.get(oneRow, h)
			return ok
		})).refused(),
		row("forwarded watches without a window", 3, 15, 500, streams(100, []http2.Setting{window(0)}, func(f *frames, _ int) bool {
			_, ok := f.get(attackedPodsPath+"?watch=true&timeoutSeconds=600", forwarded)
			return ok
		})),
		row("forwarded lists, read slowly", 50, 200, 200, func(a *attack, _ int) {
			if !a.turn() {
				return
			}
			c := a.client(http1)
			resp := a.send(c, http.MethodGet, attackedPodsPath, forwarded, nil)
			if resp == nil {
				return
			}
			defer resp.Body.Close()
			for a.ctx.Err() == nil {
				if _, err := io.CopyN(io.Discard, resp.Body, 4<<10); err != nil {
					return
				}
				cluster.Pause(a.ctx, 2*time.Second)
			}
		}),
		row("watches with a timeout of a nanosecond", 50, 300, 200, gets(http2Protocol, func(int64) string {
			return attackedPodsPath + "?watch=true&timeout=1ns&timeoutSeconds=600"
		})),
		row("discovery in made-up forms", 16, 100, 200, each(http2Protocol, func(_ *attack, i int64) (string, string, http.Header) {
			return http.MethodGet, "/apis", asAttacker("Accept", fmt.Sprintf("application/json;x=%d", i))
		})),
		row("idle connections to the admin port", 100, 300, 200, func(a *attack, _ int) {
			if !a.turn() {
				return
			}
			if conn, err := a.dialTo(strings.TrimPrefix(a.proxy.AdminURL, "http://")); err == nil {
				a.sent.Add(1)
				a.stay()
				conn.Close()
			}
		}),
	}
}
