package proxy

import (
	"context"
	"crypto/tls"
	"iter"
	"net/http"
	"strings"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

// request is what handlers see of a client's request. It holds no reference to
// the server's buffers and outlives the handler.
type request struct {
	method string
	target string // as the client sent it: path and query
	path   string // still escaped
	query  string // still escaped
	host   string
	header http.Header
	body   *body // nil if there is none
	client client
	conn   *conn                // that the request came by
	from   string               // the address of its client, when conn is not kept
	tls    *tls.ConnectionState // nil without TLS
	// identity is who the request acts as; nil without authentication.
	identity *identity
}

// client is the connection that a request came by.
type client interface {
	// whenGone calls gone once if the client leaves. The returned function
	// stops that and must be called before the connection is read again.
	whenGone(gone context.CancelFunc) (stop func())
	// interrupt makes a read of the request body fail; the connection is
	// of no use afterwards.
	interrupt()
}

func (r *request) splitTarget() { r.path, r.query, _ = strings.Cut(r.target, "?") }

// pretty tells whether upstream would indent the answer.
func (r *request) pretty() bool { return wire.Pretty(r.query, r.header.Get("User-Agent")) }

// connectionTokens are what the Connection headers name.
func (r *request) connectionTokens() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range r.header.Values("Connection") {
			for token := range strings.SplitSeq(v, ",") {
				if !yield(strings.TrimSpace(token)) {
					return
				}
			}
		}
	}
}

// hidesIdentity tells whether the client declares a header hop-by-hop that tells who
// it is or as whom it acts. A proxy would have to leave it out, and the request would
// arrive as somebody else's.
func (r *request) hidesIdentity() bool {
	for token := range r.connectionTokens() {
		name := http.CanonicalHeaderKey(token)
		if name == "Authorization" || name == "Sec-Websocket-Protocol" || strings.HasPrefix(name, impersonatePrefix) {
			return true
		}
	}
	return false
}

// wantsUpgrade tells whether the client asks to leave HTTP, as exec, attach
// and port-forward do.
func (r *request) wantsUpgrade() bool {
	return r.header.Get("Upgrade") != "" && r.connectionNames("upgrade")
}

// connectionNames tells whether a Connection header names an option.
func (r *request) connectionNames(option string) bool {
	for token := range r.connectionTokens() {
		if strings.EqualFold(token, option) {
			return true
		}
	}
	return false
}

// endsConnection tells that upstream would read no further request from the connection:
// net/http takes spaces for commas here.
func (r *request) endsConnection() bool {
	for _, value := range r.header.Values("Connection") {
		for _, token := range strings.FieldsFunc(value, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }) {
			if strings.EqualFold(token, "close") {
				return true
			}
		}
	}
	return false
}

// bearerProtocol is how a browser brings a bearer token to a WebSocket.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// identified tells whether the client brings credentials of its own.
func (r *request) identified() bool {
	return r.header.Get("Authorization") != "" ||
		strings.Contains(strings.Join(r.header.Values("Sec-Websocket-Protocol"), ","), bearerProtocol)
}

// slim is what has to be kept of a request whose answer lasts: who sent it, and how to
// find that out again.
func (r *request) slim() *request {
	if r.identity == nil {
		return &request{}
	}
	kept := &request{
		method: r.method, target: r.target, path: r.path, query: r.query, host: r.host, from: r.address(), tls: r.tls,
		identity: r.identity, header: http.Header{},
	}
	for name, values := range r.header {
		if name == "Authorization" || name == "Sec-Websocket-Protocol" || strings.HasPrefix(name, impersonatePrefix) {
			kept.header[name] = values
		}
	}
	return kept
}

// User is the user that limits are counted by, "" without authentication.
func (r *request) User() string { return r.identity.name() }

// address is where the request came from, "" if nobody can tell.
func (r *request) address() string {
	if r.conn == nil || r.conn.Conn == nil {
		return r.from
	}
	return r.conn.RemoteAddr().String()
}

const impersonatePrefix = "Impersonate-"

// impersonates tells whether the client asks to act as somebody else.
func (r *request) impersonates() bool {
	for name := range r.header {
		if strings.HasPrefix(name, impersonatePrefix) {
			return true
		}
	}
	return false
}
