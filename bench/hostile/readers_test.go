package hostile

import (
	"net/http"
	"strings"
)

// readers are clients that do not read responses.
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
		all = append(all, behaviour{
			name: "never reads " + what.name, clients: 50, most: what.most, rate: rate,
			// By design, an unread watch waits for its client up to the watch's own timeout.
			lingers: !strings.HasSuffix(what.name, "watch"),
			do:      unread(what.path),
		})
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
		do:     unread(attackedConfigMaps + "?watch=true&resourceVersion=0&timeoutSeconds=600"),
		beside: writeLarge,
	})
	for i := range all {
		all[i].small = true
	}
	return all
}

// unread sends a request and does not read its answer beyond the head.
func unread(path string) func(*attack, int) {
	return func(a *attack, _ int) {
		if !a.turn() {
			return
		}
		if _, _, resp := a.asks(http.MethodGet, path, asAttacker()); resp != nil {
			a.stay()
		}
	}
}
