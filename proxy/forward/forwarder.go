package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Forwarder sends requests upstream as they are and streams the answers back. A request keeps its
// own identity. A request without an identity gets the proxy's.
type Forwarder struct {
	base *url.URL
	// actsAs tells whether the proxy itself impersonates a user. A client's Impersonate headers
	// would then be merged with the proxy's.
	actsAs    bool
	own       transports
	anonymous transports
}

// transports lead to one upstream: over HTTP/2 if upstream supports it, and over HTTP/1.1 for
// upgrades, because HTTP/2 has no upgrades.
type transports struct{ plain, upgrade http.RoundTripper }

// Adaptation copies a client configuration and changes the copy for a purpose.
type Adaptation func(*rest.Config) *rest.Config

// New returns a forwarder to the server that config names. The function transport makes a round
// tripper. It applies its argument to the configuration of each upstream server.
func New(config *rest.Config, transport func(Adaptation) (http.RoundTripper, error)) (*Forwarder, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("upstream address %q: %w", config.Host, err)
	}
	f := &Forwarder{base: base, actsAs: config.Impersonate.UserName != ""}
	if f.own, err = newTransports(rest.CopyConfig, transport); err != nil {
		return nil, err
	}
	f.anonymous, err = newTransports(rest.AnonymousClientConfig, transport)
	return f, err
}

func newTransports(identity Adaptation, transport func(Adaptation) (http.RoundTripper, error)) (t transports, err error) {
	asIs := func(config *rest.Config) *rest.Config {
		config = identity(config)
		config.DisableCompression = true // bodies pass unchanged
		return config
	}
	if t.plain, err = transport(asIs); err != nil {
		return t, err
	}
	t.upgrade, err = transport(func(config *rest.Config) *rest.Config {
		config = asIs(config)
		config.NextProtos = []string{"http/1.1"}
		return config
	})
	return t, err
}

// Send sends a request upstream. The request ends when the client leaves. When the context over
// ends, the response ends as if upstream had ended it; over may be nil. Send calls done once, when
// both sides have finished.
func (f *Forwarder) Send(ctx, over context.Context, req *exchange.Request, t *Trip, done func()) *exchange.Response {
	ctx, cancel := context.WithCancel(ctx)
	x := &roundTrip{Request: req, cancel: OnceBoth(cancel, done), bodyDone: make(chan struct{}), stopWatch: func() {}}
	if over != nil {
		finish := x.cancel
		stop := context.AfterFunc(over, func() {
			x.over.Store(true)
			finish()
		})
		x.cancel = OnceBoth(func() { stop() }, finish)
	}
	if f.actsAs && (req.Impersonates() && req.Identity == nil || req.Identity.ActsAsAnother()) {
		x.cancel()
		return req.Fail(forbidden("the proxy's own identity is an impersonated one, so Impersonate headers are not accepted"), exchange.FromProxy)
	}
	out, err := x.outgoing(ctx, f.base)
	if err != nil {
		x.cancel()
		return exchange.NoRequest(exchange.BadRequest(err.Error()))
	}
	way, ok := f.way(req)
	if !ok {
		x.cancel()
		return req.Fail(forbidden("the name, uid, groups or extra of the user cannot be passed on: they are empty, have spaces around them or are no header values"), exchange.FromProxy)
	}
	if x.Body == nil {
		close(x.bodyDone)
		x.watchClient()
	}
	asked := false
	defer func() {
		if !asked { // a panic: no caller will close the answer
			_ = out.Body.Close()
			x.finish()
		}
	}()
	t.Sent = time.Now()
	in, err := t.within(cancel, func() (*http.Response, error) { return way.RoundTrip(out) })
	asked = true
	if err != nil {
		broken := x.Body.Failure() // before the proxy interrupts the body itself
		_ = out.Body.Close()       // some transports do not
		x.finish()
		if errors.Is(broken, exchange.ErrBodyTooLarge) {
			return req.Fail(exchange.BodyTooLarge(x.Body.Most), exchange.FromProxy)
		}
		if broken != nil {
			return exchange.StatusResponse(exchange.BadRequest("request body: "+broken.Error()), exchange.FromProxy)
		}
		return exchange.StatusResponse(unreachable(err), exchange.FromProxy)
	}
	if in.StatusCode == http.StatusSwitchingProtocols {
		return x.tunnel(in)
	}
	resp := exchange.NewResponse(in.StatusCode, exchange.FromUpstream)
	copyHeader(resp.Header, in.Header)
	resp.Length = in.ContentLength
	x.upstream = in.Body
	resp.Reader = x
	return resp
}

// Trip holds the times of a request's way upstream.
type Trip struct {
	Patience time.Duration // maximum time until upstream begins its answer; 0 means no limit
	Takes    time.Duration // usual time that upstream takes; 0 if unknown
	Sent     time.Time     // zero if this request was not sent upstream
}

// Since is the time since the request was sent, 0 if it was not.
func (t *Trip) Since() time.Duration {
	if t.Sent.IsZero() {
		return 0
	}
	return time.Since(t.Sent)
}

// within gives up if the answer does not begin within the trip's patience.
func (t *Trip) within(cancel func(), ask func() (*http.Response, error)) (*http.Response, error) {
	if t.Patience == 0 {
		return ask()
	}
	late := time.AfterFunc(t.Patience, cancel)
	in, err := ask()
	if !late.Stop() && err == nil { // cancel has already aborted the answer
		return nil, errors.Join(context.Canceled, in.Body.Close())
	}
	return in, err
}

// way chooses how a request goes upstream: as the proxy, as a user whom the proxy impersonates, or
// with the client's own credentials only. It returns false if headers cannot carry the user.
func (f *Forwarder) way(req *exchange.Request) (http.RoundTripper, bool) {
	ts := f.own
	if req.Identity == nil && req.Identified() || req.Identity != nil && !req.Identity.ActsAsAnother() {
		ts = f.anonymous
	}
	way := ts.plain
	if req.WantsUpgrade() {
		way = ts.upgrade
	}
	if req.Identity.ActsAsAnother() {
		return access.Impersonating(req.Identity.ActsAs, way)
	}
	return way, true
}

// OnceBoth returns a function that calls both functions, once.
func OnceBoth(first, second func()) func() {
	return sync.OnceFunc(func() {
		first()
		second()
	})
}

// roundTrip is one forwarded request until its response has been written. It is the reader of the
// response's body; Close ends both sides.
type roundTrip struct {
	*exchange.Request
	cancel    context.CancelFunc
	upstream  io.ReadCloser
	bodyDone  chan struct{} // closed when upstream's transport has let go of the body
	mu        sync.Mutex
	stopWatch func()
	finished  bool
	over      atomic.Bool // the response ends as if upstream had ended it
}

func (x *roundTrip) outgoing(ctx context.Context, base *url.URL) (*http.Request, error) {
	target, err := url.ParseRequestURI(x.Target)
	if err != nil || !strings.HasPrefix(x.Target, "/") {
		return nil, fmt.Errorf("request target %q is not a path", x.Target)
	}
	u := *base
	prefix := strings.TrimSuffix(base.Path, "/")
	u.Path, u.RawQuery = prefix+target.Path, target.RawQuery
	u.RawPath = (&url.URL{Path: prefix}).EscapedPath() + target.EscapedPath()
	body := io.ReadCloser(http.NoBody)
	if x.Body != nil {
		if x.WantsUpgrade() {
			return nil, errors.New("a request to leave HTTP must not have a body")
		}
		body = &requestBody{roundTrip: x}
	}
	out, err := http.NewRequestWithContext(ctx, x.Method, base.String(), body)
	if err != nil {
		return nil, err
	}
	out.URL = &u // another parse would cut it at a #
	copyHeader(out.Header, x.Header)
	if x.Identity.ActsAsAnother() {
		dropCredentials(out.Header) // upstream would take them for the proxy's
	}
	if x.Body != nil {
		out.ContentLength = x.Body.Length
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // or net/http adds its own
	}
	if x.WantsUpgrade() {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", x.Header.Get("Upgrade"))
	}
	return out, nil
}

// watchClient ends the request when the client leaves. It may only be called after the request body
// has been read.
func (x *roundTrip) watchClient() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.finished {
		x.stopWatch = x.Client.CancelWhenGone(x.cancel)
	}
}

// finish releases both sides. It returns when nothing reads the client's connection any more.
func (x *roundTrip) finish() {
	x.cancel()
	x.mu.Lock()
	x.finished = true
	stop := x.stopWatch
	x.stopWatch = func() {}
	x.mu.Unlock()
	select {
	case <-x.bodyDone:
	default:
		// Upstream answered before it read the whole request, or the transport has not seen the end
		// yet.
		if x.Body == nil || !x.Body.Ended.Load() {
			x.Client.Interrupt()
		}
		if x.Body != nil {
			<-x.bodyDone
		}
	}
	stop()
}

// Read implements io.Reader.
func (x *roundTrip) Read(p []byte) (int, error) {
	n, err := x.upstream.Read(p)
	if err != nil && x.over.Load() {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (x *roundTrip) Close() error {
	err := x.upstream.Close()
	x.finish()
	return err
}

// requestBody is a client's body for upstream's transport. The transport may read it in another
// goroutine, after the response has begun, and may close it during a read. bodyDone is closed after
// the last read.
type requestBody struct {
	*roundTrip
	reading sync.Mutex // held by Read
	closed  bool       // guarded by reading
	ended   bool       // guarded by reading
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	switch {
	case b.ended:
		return 0, io.EOF // a transport that knows the length still checks for more
	case b.closed:
		return 0, io.ErrClosedPipe
	}
	n, err := b.Body.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended = true
		b.closeLocked()
		b.watchClient()
		return n, io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (b *requestBody) Close() error {
	if !b.Body.Ended.Load() {
		b.Client.Interrupt() // the client could hold up a read in progress
	}
	b.reading.Lock()
	defer b.reading.Unlock()
	b.closeLocked()
	return nil
}

func (b *requestBody) closeLocked() {
	if !b.closed {
		b.closed = true
		close(b.bodyDone)
	}
}

// hopByHop headers belong to one connection (RFC 9110, 7.6.1). X-Remote headers are dropped too,
// because with them a front proxy tells an apiserver who its client is.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// dropCredentials deletes the headers that tell who sent a request.
func dropCredentials(header http.Header) {
	header.Del("Authorization")
	for name := range header {
		if strings.HasPrefix(name, access.ImpersonatePrefix) {
			delete(header, name)
		}
	}
}

// copyHeader copies the end-to-end headers.
func copyHeader(to, from http.Header) {
	drop := slices.Clone(hopByHop)
	for _, v := range from.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			drop = append(drop, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for name, values := range from {
		if strings.HasPrefix(name, "X-Remote-") || name == "Host" || name == "Content-Length" || slices.Contains(drop, name) {
			continue
		}
		to[name] = slices.Clone(values)
	}
}

func forbidden(message string) metav1.Status {
	return exchange.Failure(http.StatusForbidden, metav1.StatusReasonForbidden, message)
}

// unreachable is the Status for a request that could not be forwarded.
func unreachable(err error) metav1.Status {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return exchange.Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the upstream apiserver did not answer in time")
	}
	return exchange.RetryLater(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the upstream apiserver cannot be reached")
}
