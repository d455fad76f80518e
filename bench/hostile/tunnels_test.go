package hostile

import (
	"net/http"
)

// tunnels are connections to a kubelet that clients open and abandon.
func tunnels() (all []behaviour) {
	const pod = attackedPodsPath + "/" + tunnelled
	for _, what := range []struct{ name, method, path, upgrade string }{
		{"exec", http.MethodPost, pod + "/exec?command=x&stdin=true&stdout=true", "SPDY/3.1"},
		{"attach", http.MethodPost, pod + "/attach?stdin=true&stdout=true", "SPDY/3.1"},
		{"port-forward", http.MethodPost, pod + "/portforward", "SPDY/3.1"},
		{"logs", http.MethodGet, pod + "/log?follow=true", ""},
	} {
		all = append(all, behaviour{
			name: "tunnels: " + what.name + ", opened and left", clients: 50, most: 300, rate: 100,
			do: func(a *attack, _ int) {
				if !a.turn() {
					return
				}
				h := asAttacker()
				if what.upgrade != "" {
					h = asAttacker("Connection", "Upgrade", "Upgrade", what.upgrade)
				}
				if _, _, resp := a.asks(what.method, what.path, h); resp != nil {
					a.stay()
				}
			},
		})
	}
	return append(all, behaviour{
		name: "tunnels: exec, opened and closed", clients: 8, most: 16, rate: 50,
		do: func(a *attack, _ int) {
			for a.turn() {
				conn, _, resp := a.asks(http.MethodPost, pod+"/exec?command=x&stdin=true", asAttacker("Connection", "Upgrade", "Upgrade", "SPDY/3.1"))
				if resp != nil {
					conn.Close()
				}
			}
		},
	}, behaviour{
		name: "tunnels: denied", clients: 8, most: 16, rate: 100,
		do: func(a *attack, _ int) {
			for a.turn() {
				conn, _, resp := a.asks(http.MethodPost, deniedPodsPath+"/"+podName(victimSpace, 0)+"/exec?command=x",
					asAttacker("Connection", "Upgrade", "Upgrade", "SPDY/3.1"))
				if resp != nil {
					conn.Close()
				}
			}
		},
	}.refused())
}
