package hostile

import (
	"bufio"
	"net/http"
	"strings"
)

const elsewhere = "https://evil.example"

// upgradeToWebSocket is the header of a browser's handshake.
func upgradeToWebSocket() http.Header {
	return http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
}

// crossSite returns requests that a page of another site can make a browser send to a developer's
// proxy. On this proxy all clients have the developer's rights. None of these requests may return
// data.
func crossSite() (all []behaviour) {
	const secrets = "/api/v1/namespaces/default/secrets"
	with := func(h http.Header, fields ...string) http.Header {
		h = h.Clone()
		for i := 0; i+1 < len(fields); i += 2 {
			h.Set(fields[i], fields[i+1])
		}
		return h
	}
	socket := with(upgradeToWebSocket(), "Origin", elsewhere)
	channels := with(socket, "Sec-Websocket-Protocol", "v5.channel.k8s.io")
	script := http.Header{"Origin": {elsewhere}, "Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"cors"}}
	noCORS := http.Header{"Origin": {elsewhere}, "Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}}
	for _, row := range []struct {
		name   string
		method string
		paths  []string
		header http.Header
		admin  bool // sent to the address of metrics and probes
	}{
		{"WebSocket to watches", http.MethodGet, []string{secrets + "?watch=true", cachedWatch, "/api/v1/configmaps?watch=true"}, socket, false},
		{"WebSocket to exec, attach, port-forward", http.MethodGet, tunnelPaths(), channels, false},
		{"WebSocket without Sec-Fetch-Site from a sandbox", http.MethodGet, []string{secrets + "?watch=true"}, with(socket, "Origin", "null"), false},
		{"fetch", http.MethodGet, []string{secrets, cachedList, "/version"}, script, false},
		{"fetch, no-cors", http.MethodGet, []string{secrets, cachedList}, noCORS, false},
		{"images and scripts", http.MethodGet, []string{secrets, cachedList}, http.Header{
			"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}, "Sec-Fetch-Dest": {"image"},
		}, false},
		{"the same site, another port", http.MethodGet, []string{secrets, cachedList}, http.Header{"Sec-Fetch-Site": {"same-site"}, "Origin": {"http://localhost:1"}}, false},
		{"EventSource", http.MethodGet, []string{secrets + "?watch=true"}, with(script, "Accept", "text/event-stream"), false},
		{"posts without a type", http.MethodPost, []string{attackedConfigMaps, "/api/v1/namespaces"}, noCORS, false},
		{"posts of forms", http.MethodPost, []string{attackedConfigMaps}, with(noCORS, "Content-Type", "text/plain;charset=UTF-8"), false},
		{"deletes after a preflight", http.MethodDelete, []string{attackedPodsPath + "/" + podName(attackerSpace, 0)}, script, false},
		{"DNS rebinding", http.MethodGet, []string{secrets, cachedList, "/version"}, http.Header{"Host": {"evil.example:8001"}, "Sec-Fetch-Site": {"same-origin"}}, false},
		{"DNS rebinding of the admin address", http.MethodGet, []string{"/metrics", "/status", "/debug/pprof/heap", "/"}, http.Header{
			"Host": {"evil.example:8002"}, "Sec-Fetch-Site": {"same-origin"},
		}, true},
		{"fetch from the admin address", http.MethodGet, []string{"/metrics", "/status", "/debug/pprof/goroutine?debug=2"}, script, true},
	} {
		b := behaviour{
			name: "cross-site: " + row.name, clients: 4, most: 8, rate: 100, on: local,
			do: func(a *attack, _ int) {
				for a.turn() {
					a.crossSite(row.method, row.paths[a.next.Add(1)%int64(len(row.paths))], row.header, row.admin)
				}
			},
		}
		all = append(all, b.refused())
	}
	return all
}

func tunnelPaths() (paths []string) {
	for tail := range strings.FieldsSeq("/exec?command=x&stdout=true /attach?stdout=true /portforward?ports=80") {
		paths = append(paths, attackedPodsPath+"/"+tunnelled+tail)
	}
	return paths
}

// crossSite sends a request on a new connection. If a POST succeeds, it creates an object.
func (a *attack) crossSite(method, path string, header http.Header, admin bool) {
	address := a.address
	if admin {
		address = a.admin
	}
	const body = `{"metadata":{"generateName":"written-by-another-site-"}}`
	conn, err := a.dialTo(address)
	if err != nil {
		return
	}
	defer conn.Close()
	header = header.Clone()
	text := ""
	if method == http.MethodPost {
		header.Set("Content-Length", itoa(len(body)))
		text = body
	}
	if a.write(conn, a.request(method, path, header)+text) == nil {
		_, _ = a.answer(bufio.NewReader(conn))
	}
}
