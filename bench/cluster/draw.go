package cluster

import (
	"hash/fnv"
	"math/rand/v2"
)

// Draw returns a number below n that depends only on the seed and the names.
func Draw(n int, names ...string) int {
	h := fnv.New64a()
	for _, name := range names {
		_, _ = h.Write(append([]byte(name), 0))
	}
	return rand.New(rand.NewPCG(seed, h.Sum64())).IntN(n)
}

// Protocol is the version of HTTP that carries a request.
type Protocol int

// The protocols. Connections without TLS carry only HTTP/1.1.
const (
	Drawn Protocol = iota // DrawProtocol chooses by the request
	HTTP1
	HTTP2
)

// DrawProtocol chooses HTTP/2 for three of four combinations of names and seed.
func DrawProtocol(names ...string) Protocol {
	if Draw(4, append(names, "protocol")...) == 0 {
		return HTTP1
	}
	return HTTP2
}

// drawn returns the protocol of a request. Upgrades and requests with headers for the connection
// need HTTP/1.1.
func (e *Endpoint) drawn(r Request) Protocol {
	switch {
	case r.Protocol != Drawn:
		return r.Protocol
	case r.Header.Get("Connection") != "" || r.Header.Get("Upgrade") != "":
		return HTTP1
	}
	return DrawProtocol(e.Name, r.Method, r.Target, r.Header.Get("Accept"))
}
