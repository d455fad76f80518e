package exchange

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// Request is a client's request. It may outlive the handler.
type Request struct {
	Method string
	Target string // path and query, as sent by the client
	Path   string // still escaped
	Query  string // still escaped
	Route  Route  // the meaning of Method and Path, which the handler finds out
	Host   string
	Header http.Header
	// Buffered is the size of the buffer from which HTTP/1.1 reads a long head, in bytes.
	Buffered int64
	Body     *Body // nil if the request has none
	Client   Client
	Conn     Conn                 // the request's connection
	TLS      *tls.ConnectionState // nil without TLS
	// Identity is the authenticated caller. Without authentication it is nil, and the request has
	// the proxy's rights.
	Identity *access.Caller
	// InFlight counts the request until End. It is nil for a request that does not count.
	InFlight interface{ Dec() }
	// Memory is what counts for the request until Free. Before the request is admitted, it is nil.
	Memory *fair.Holding
}

// End says that the request is no longer in flight.
func (r *Request) End() {
	if r.InFlight != nil {
		r.InFlight.Dec()
		r.InFlight = nil
	}
}

// Free gives back the request's memory. It must be called when the response has been written, or
// when a watch from the cache begins.
func (r *Request) Free() { r.Memory.Free() }

// Address returns the client's address.
func (r *Request) Address() string { return address(r.Conn) }

// Conn is the connection of a request.
type Conn interface {
	RemoteAddr() net.Addr
	// Crowded reports whether too many connections are open.
	Crowded() bool
	// User returns the user against whose limit the connection counts, or "".
	User() string
	// HoldAs counts the connection against a user's limit. It returns false if take refuses.
	HoldAs(user string, take func() (giveBack func(), ok bool)) bool
}

// Client is the sender of a request.
type Client interface {
	// CancelWhenGone calls gone once if the client leaves. The caller must call stop before the
	// connection is read again.
	CancelWhenGone(gone context.CancelFunc) (stop func())
	// Interrupt makes a read of the request body fail. The connection cannot be used after that.
	Interrupt()
}

// Nobody is a client that never leaves.
type Nobody struct{}

// CancelWhenGone implements Client.
func (Nobody) CancelWhenGone(context.CancelFunc) (stop func()) { return func() {} }

// Interrupt implements Client.
func (Nobody) Interrupt() {}

// SplitTarget sets Path and Query from Target.
func (r *Request) SplitTarget() { r.Path, r.Query, _ = strings.Cut(r.Target, "?") }

// Pretty reports whether upstream would indent the response.
func (r *Request) Pretty() bool { return wire.Pretty(r.Query, r.Header.Get("User-Agent")) }

// HidesIdentity reports whether a header declares an identity header hop-by-hop. A proxy would have
// to drop the identity header, and upstream would attribute the request to another user.
func HidesIdentity(header http.Header) bool {
	for _, v := range header.Values("Connection") {
		for token := range strings.SplitSeq(v, ",") {
			if isIdentity(http.CanonicalHeaderKey(strings.TrimSpace(token))) {
				return true
			}
		}
	}
	return false
}

func isIdentity(name string) bool {
	return name == "Authorization" || name == "Sec-Websocket-Protocol" ||
		strings.HasPrefix(name, access.ImpersonatePrefix)
}

// WantsUpgrade reports whether the client asks to switch from HTTP to another protocol, as for
// exec, attach and port-forward. With a body it does not: a server may ignore such an offer.
func (r *Request) WantsUpgrade() bool {
	return r.Body == nil && r.Header.Get("Upgrade") != "" &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

// OnlyReads reports whether upstream may execute the request twice without harm. An upgrade may
// execute a command in a pod, whatever its method is.
func (r *Request) OnlyReads() bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && !r.WantsUpgrade()
}

// bearerProtocol is the prefix of the WebSocket protocol in which browsers send a bearer token.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// Identified reports whether the request has credentials in its headers.
func (r *Request) Identified() bool {
	protocols := strings.Join(r.Header.Values("Sec-Websocket-Protocol"), ",")
	return r.Header.Get("Authorization") != "" || strings.Contains(protocols, bearerProtocol)
}

// User returns the user whose limits apply, or "" without authentication.
func (r *Request) User() string {
	if r.Identity == nil {
		return ""
	}
	return r.Identity.User.GetName()
}

// Impersonates reports whether the client asks to act as another user.
func (r *Request) Impersonates() bool {
	for name := range r.Header {
		if strings.HasPrefix(name, access.ImpersonatePrefix) {
			return true
		}
	}
	return false
}

// plainHeaders are request headers that do not change the response to a read, or only select its
// form.
var plainHeaders = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Audit-Id", "Cache-Control", "Connection",
	"Content-Type", "Host", "Kubectl-Command", "Kubectl-Session", "Traceparent", "Tracestate",
	"User-Agent",
}

// Plain reports whether a read has only headers with a known effect on the response: plainHeaders,
// authenticated credentials, and the headers in also.
func (r *Request) Plain(also ...string) bool {
	if r.WantsUpgrade() || r.Impersonates() || r.Identity == nil && r.Identified() {
		return false
	}
	for name, values := range r.Header {
		known := slices.Contains(plainHeaders, name) || slices.Contains(also, name) ||
			name == "Authorization" && r.Identity != nil
		hides := name == "Connection" && !strings.EqualFold(values[0], "keep-alive")
		if !known || hides || len(values) > 1 {
			return false
		}
	}
	return true
}

// AsHTTP returns the request without its body, for package access.
func (r *Request) AsHTTP(ctx context.Context) *http.Request {
	u, err := url.ParseRequestURI(r.Target)
	if err != nil {
		u = &url.URL{Path: r.Path, RawQuery: r.Query}
	}
	asked := &http.Request{
		Method:     r.Method,
		URL:        u,
		RequestURI: r.Target,
		Host:       r.Host,
		RemoteAddr: address(r.Conn),
		Header:     r.Header,
		TLS:        r.TLS,
	}
	return asked.WithContext(ctx)
}

// AheadMax limits the bytes that are read ahead of pipelined requests.
const AheadMax = 64 << 10

// Attended returns a context that ends when the client leaves or its timeout is over. Stop must be
// called before the connection is read again.
func (r *Request) Attended(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithTimeout(ctx, r.Patience())
	// A client is not watched if the rest of its body may exceed AheadMax.
	sends := r.Body != nil && !r.Body.Ended.Load()
	if r.Client == nil || sends && (r.Body.Length < 0 || r.Body.Length >= AheadMax) {
		return ctx, cancel
	}
	unwatch := r.Client.CancelWhenGone(cancel)
	return ctx, func() {
		unwatch()
		cancel()
	}
}

// Patience is the time for which a request may wait for its turn: requestWait, or the client's
// timeout if that is shorter.
func (r *Request) Patience() time.Duration {
	timeout, _ := wire.Parameter(r.Query, "timeout") // a malformed query may still have one
	if bound, err := time.ParseDuration(timeout); err == nil && bound > 0 {
		return min(bound, requestWait)
	}
	return requestWait
}

// Held estimates the memory that a waiting request holds, in bytes: its goroutine, its raw input,
// its headers twice (as bytes and as strings), and the beginning of its body.
func (r *Request) Held() int64 {
	const fixed = 8 << 10
	held := fixed + 2*r.HeadSize() + r.Buffered
	switch {
	case r.Body == nil:
	case r.Body.Length < 0:
		held += BodyAhead
	default:
		held += min(r.Body.Length, BodyAhead)
	}
	return held
}

// HeadSize estimates the memory of the path, the query and the headers, in bytes.
func (r *Request) HeadSize() int64 { return int64(len(r.Target)) + HeaderSize(r.Header) }

// HeaderSize estimates the memory of headers, in bytes.
func HeaderSize(header http.Header) int64 {
	const each = 64
	size := 0
	for name, values := range header {
		size += len(name) + each*max(1, len(values))
		for _, v := range values {
			size += len(v)
		}
	}
	return int64(size)
}

// requestWait limits the wait for a turn. It equals kube-apiserver's own limit.
const requestWait = time.Minute

// Handler answers requests.
type Handler interface {
	// Handle sets the request's route and answers the request. It does not panic.
	// Over HTTP/2, ctx ends when the client leaves. Over HTTP/1.1 it does not: see Request.Client.
	// The response must be closed, for a request without Memory perhaps before it is written.
	Handle(ctx context.Context, req *Request) *Response
	// Refused counts the response to input that is not a request. It sets the route as well.
	Refused(req *Request, resp *Response)
}
