package exchange

import (
	"context"
	"crypto/tls"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

// Request is what handlers see of a client's request. It holds no reference to
// the server's buffers and outlives the handler.
type Request struct {
	Method string
	Target string // as the client sent it: path and query
	Path   string // still escaped
	Query  string // still escaped
	Host   string
	Header http.Header
	Body   *Body // nil if there is none
	Client Client
	Conn   Conn                 // that the request came by
	from   string               // the address of its client, when conn is not kept
	TLS    *tls.ConnectionState // nil without TLS
	// identity is who the request acts as; nil without authentication.
	Identity *Identity
}

// Conn is the connection that a request came by.
type Conn interface {
	RemoteAddr() net.Addr
	// Crowded tells that more connections are open than should be.
	Crowded() bool
	// HoldAs counts the connection for a user, unless take says that the user has enough.
	HoldAs(user string, take func() (giveBack func(), ok bool)) bool
}

// Client is the sender of a request.
type Client interface {
	// WhenGone calls gone once if the client leaves. The returned function
	// stops that and must be called before the connection is read again.
	WhenGone(gone context.CancelFunc) (stop func())
	// Interrupt makes a read of the request body fail; the connection is
	// of no use afterwards.
	Interrupt()
}

// SplitTarget sets path and query.
func (r *Request) SplitTarget() { r.Path, r.Query, _ = strings.Cut(r.Target, "?") }

// Pretty tells whether upstream would indent the answer.
func (r *Request) Pretty() bool { return wire.Pretty(r.Query, r.Header.Get("User-Agent")) }

// connectionTokens are what the Connection headers name.
func (r *Request) connectionTokens() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range r.Header.Values("Connection") {
			for token := range strings.SplitSeq(v, ",") {
				if !yield(strings.TrimSpace(token)) {
					return
				}
			}
		}
	}
}

// HidesIdentity tells whether the client declares a header hop-by-hop that tells who
// it is or as whom it acts. A proxy would have to leave it out, and the request would
// arrive as somebody else's.
func (r *Request) HidesIdentity() bool {
	for token := range r.connectionTokens() {
		name := http.CanonicalHeaderKey(token)
		if name == "Authorization" || name == "Sec-Websocket-Protocol" || strings.HasPrefix(name, ImpersonatePrefix) {
			return true
		}
	}
	return false
}

// WantsUpgrade tells whether the client asks to leave HTTP, as exec, attach
// and port-forward do.
func (r *Request) WantsUpgrade() bool {
	return r.Header.Get("Upgrade") != "" && r.connectionNames("upgrade")
}

// connectionNames tells whether a Connection header names an option.
func (r *Request) connectionNames(option string) bool {
	for token := range r.connectionTokens() {
		if strings.EqualFold(token, option) {
			return true
		}
	}
	return false
}

// EndsConnection tells that upstream would read no further request from the connection:
// net/http takes spaces for commas here.
func (r *Request) EndsConnection() bool {
	for _, value := range r.Header.Values("Connection") {
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

// Identified tells whether the client brings credentials of its own.
func (r *Request) Identified() bool {
	return r.Header.Get("Authorization") != "" ||
		strings.Contains(strings.Join(r.Header.Values("Sec-Websocket-Protocol"), ","), bearerProtocol)
}

// Slim is what has to be kept of a request whose answer lasts: who sent it, and how to
// find that out again.
func (r *Request) Slim() *Request {
	if r.Identity == nil {
		return &Request{}
	}
	kept := &Request{
		Method: r.Method, Target: r.Target, Path: r.Path, Query: r.Query, Host: r.Host, from: r.address(), TLS: r.TLS,
		Identity: r.Identity, Header: http.Header{},
	}
	for name, values := range r.Header {
		if name == "Authorization" || name == "Sec-Websocket-Protocol" || strings.HasPrefix(name, ImpersonatePrefix) {
			kept.Header[name] = values
		}
	}
	return kept
}

// User is the user that limits are counted by, "" without authentication.
func (r *Request) User() string { return r.Identity.name() }

// address is where the request came from, "" if nobody can tell.
func (r *Request) address() string {
	if r.Conn == nil {
		return r.from
	}
	return r.Conn.RemoteAddr().String()
}

// ImpersonatePrefix begins the names of headers that ask to act as somebody else.
const ImpersonatePrefix = "Impersonate-"

// Impersonates tells whether the client asks to act as somebody else.
func (r *Request) Impersonates() bool {
	for name := range r.Header {
		if strings.HasPrefix(name, ImpersonatePrefix) {
			return true
		}
	}
	return false
}

// AsHTTP is a request as the access package reads it. Its body is not there.
func (r *Request) AsHTTP(ctx context.Context) *http.Request {
	u, err := url.ParseRequestURI(r.Target)
	if err != nil {
		u = &url.URL{Path: r.Path, RawQuery: r.Query}
	}
	asked := &http.Request{Method: r.Method, URL: u, RequestURI: r.Target, Host: r.Host, RemoteAddr: r.address(), Header: r.Header, TLS: r.TLS}
	return asked.WithContext(ctx)
}

// AheadMax bounds how much is read ahead of a client that does not wait for its answers, in bytes.
const AheadMax = 64 << 10

// Attended returns a context that ends when the client leaves or its patience does. Stop must be
// called before the client's connection is read again.
func (r *Request) Attended(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithTimeout(ctx, r.waits())
	if r.Client == nil || r.Body != nil && (r.Body.Length < 0 || r.Body.Length >= AheadMax) {
		return ctx, cancel // what is read ahead of the handler is bounded
	}
	unwatch := r.Client.WhenGone(cancel)
	return ctx, func() {
		unwatch()
		cancel()
	}
}

// waits is how long a request waits for its turn: requestWait, or less if the client gives up
// before.
func (r *Request) waits() time.Duration {
	if strings.Contains(r.Query, "timeout=") {
		values, _ := url.ParseQuery(r.Query) // what can be read of it
		if bound, err := time.ParseDuration(values.Get("timeout")); err == nil && bound > 0 {
			return min(bound, requestWait)
		}
	}
	return requestWait
}

// Held is about how much memory a request takes while it waits, in bytes: its goroutine, what it
// was read into, its headers twice (as they came and as strings), and what is there of its body.
func (r *Request) Held() int64 {
	const fixed, each = 8 << 10, 64
	held := len(r.Target)
	for name, values := range r.Header {
		held += len(name) + each
		for _, v := range values {
			held += len(v)
		}
	}
	held = fixed + 2*held
	switch {
	case r.Body == nil:
	case r.Body.Length < 0:
		held += BodyAhead
	default:
		held += int(min(r.Body.Length, BodyAhead))
	}
	return int64(held)
}

// requestWait is how long a request waits for its turn at most: kube-apiserver gives a request up
// after that long.
const requestWait = time.Minute
