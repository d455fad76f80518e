package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Forwarder sends requests upstream. A request with neither credentials nor a user that the proxy
// has authenticated gets the proxy's identity.
type Forwarder struct {
	base *url.URL
	// actsAs reports whether the proxy itself impersonates a user. Send then refuses Impersonate
	// headers of clients, because they would be merged with the proxy's.
	actsAs bool
	// Requests share connections only with requests of the same kind, see the package.
	own       transports // with the proxy's credentials
	users     transports // with tokens that the proxy has verified
	strangers transports // with credentials that the proxy has not verified, or of anonymous users
}

// New returns a forwarder to the server in config. The function transport makes a round tripper
// from the configurations of the upstream servers, each changed by the function's argument.
func New(
	config *rest.Config, transport func(Adaptation) (http.RoundTripper, error),
) (*Forwarder, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("upstream address %q: %w", config.Host, err)
	}
	f := &Forwarder{base: base, actsAs: config.Impersonate.UserName != ""}
	if f.own, err = newTransports(rest.CopyConfig, transport); err != nil {
		return nil, err
	}
	if f.users, err = newTransports(withoutCredentials, transport); err != nil {
		return nil, err
	}
	f.own.plain, f.own.http1 = Own(f.own.plain), Own(f.own.http1) // uploads cannot be sent again
	f.strangers, err = newTransports(withoutCredentials, transport)
	return f, err
}

// Send sends a request upstream. The request ends when the client leaves or ctx ends. If ctx was
// cancelled without a cause, the client has left. When over ends, the response ends as if upstream
// had ended it. When stopping ends before the response begins, the request fails. Send releases the
// attempt's admission when the request ends (see lifetime).
func (f *Forwarder) Send(
	ctx, over, stopping context.Context, req *exchange.Request, t *Attempt,
) *exchange.Response {
	client := ctx
	ctx, cancel := context.WithCancel(ctx)
	x := &roundTrip{lifetime: lifetime{
		Request: req,
		attempt: t,
		cancel:  cancel,
	}}
	x.asProxy = asProxy(req)
	x.impersonates = x.asProxy && (f.actsAs || req.Identity.ActsAsAnother())
	x.begin(over, stopping)
	var out *http.Request
	answered := false
	defer func() {
		switch {
		case answered:
		case out == nil:
			x.end(closed)
		default: // after a panic no caller closes the response
			_ = out.Body.Close()
			x.finish()
		}
	}()
	if stopping.Err() != nil { // for example, the request has waited for a slot
		x.end(stopped)
		return exchange.StatusResponse(stops(true))
	}
	if f.actsAs && (req.Impersonates() && req.Identity == nil || req.Identity.ActsAsAnother()) {
		return req.Refuse(exchange.Forbidden("the proxy's own identity is an impersonated one, " +
			"so Impersonate headers are not accepted"))
	}
	whole := x.Body.Whole()
	way, ok := f.way(req, t, whole != nil)
	if !ok {
		return req.Refuse(exchange.Forbidden("the name, uid, groups or extra of the user cannot " +
			"be passed on: they are empty, have spaces around them or are no header values"))
	}
	out, err := x.outgoing(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// After GOAWAY, the transport asks for another connection for a request that upstream has
		// not executed. It may get none.
		GetConn: func(string) { x.sent.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { x.sent.Store(true) },
	}), f.base, whole)
	if err != nil {
		return exchange.NoRequest(exchange.BadRequest(err.Error()))
	}
	if x.Body == nil || whole != nil {
		close(x.uploaded)
		x.watchClient()
	}
	t.Sent = time.Now()
	in, err := t.within(cancel, func() (*http.Response, error) { return way.RoundTrip(out) })
	resp := x.answer(ctx, client, out, in, err)
	answered = true
	return resp
}

func (x *roundTrip) answer(
	ctx, client context.Context, out *http.Request, in *http.Response, err error,
) *exchange.Response {
	if err != nil {
		//nolint:errorlint // other causes do not mean that the client left
		gone := x.ended.Load() == left || context.Cause(client) == context.Canceled
		broken := BrokenBody(x.Request) // before the proxy itself interrupts the body
		_ = out.Body.Close()            // some transports do not close it
		x.finish()
		if cause := context.Cause(client); cause != nil {
			err = cause // some transports do not tell it
		}
		harmless := !x.sent.Load() || x.OnlyReads()
		x.attempt.GivenUp = x.sent.Load() && (gone || broken != nil)
		switch {
		case broken != nil:
			return broken
		case x.ended.Load() == stopped:
			return exchange.StatusResponse(stops(harmless))
		case gone:
			return exchange.ClientGone()
		}
		return exchange.StatusResponse(unanswered(err, x.sent.Load(), harmless))
	}
	if in.StatusCode == http.StatusSwitchingProtocols {
		return x.tunnel(ctx, in)
	}
	if refusal := x.refusal(out, in); refusal != nil {
		_ = in.Body.Close()
		x.finish()
		return x.Refuse(*refusal)
	}
	resp, err := responseTo(in)
	if err != nil {
		_ = in.Body.Close()
		x.finish()
		return LongHeader()
	}
	x.upstream = in.Body
	x.lines = hasLines(in.Header)
	resp.Body = &exchange.Reader{ReadCloser: x, Length: in.ContentLength}
	return resp
}

// Attempt is a request that is forwarded: what it holds meanwhile, and its times.
type Attempt struct {
	Admission
	Patience time.Duration // maximum time until upstream's response begins; 0 means no limit
	Sent     time.Time     // zero if this request was not sent upstream
	Lasts    bool          // the request has no time limit: watches, logs, exec, …
	Relayed  bool          // a pod, service or node answers, through the apiserver
	// GivenUp is true if the client has left, or its request has turned out to be malformed, before
	// the response of a request that was sent.
	GivenUp bool

	begun atomic.Bool
}

// ResponseBegins must be called before the response is written. From then on, a server that stops
// lets the response end.
func (t *Attempt) ResponseBegins() { t.begun.Store(true) }

// within gives up if the response does not begin within the attempt's patience.
func (t *Attempt) within(
	cancel func(), ask func() (*http.Response, error),
) (*http.Response, error) {
	if t.Patience == 0 {
		return ask()
	}
	late := time.AfterFunc(t.Patience, cancel)
	in, err := ask()
	if !late.Stop() && err == nil { // cancel has already aborted the response
		return nil, errors.Join(context.Canceled, in.Body.Close())
	}
	return in, err
}

// roundTrip is a forwarded request, and the body of its response. Close ends both sides.
type roundTrip struct {
	lifetime
	upstream io.ReadCloser
	closing  sync.Once
	sent     atomic.Bool // upstream may have received the request
	lines    bool        // each event is a line
	within   bool        // the last byte was within a line
	asProxy  bool        // the request has the proxy's own credentials
	// impersonates is true if the proxy, not the client, has chosen a user to impersonate.
	impersonates bool
}

// outgoing returns the request for upstream. whole is its body if all of that has been read.
func (x *roundTrip) outgoing(
	ctx context.Context, base *url.URL, whole []byte,
) (*http.Request, error) {
	target, err := url.ParseRequestURI(x.Target)
	if err != nil || !strings.HasPrefix(x.Target, "/") {
		// The query may have secrets.
		return nil, fmt.Errorf("request target %q is not a path", x.Path)
	}
	u := *base
	prefix := strings.TrimSuffix(base.Path, "/")
	if prefix != "" && leaves(target.Path) {
		return nil, errors.New("the path must not contain the segments . or .., " +
			"because the upstream apiserver's address has a path")
	}
	u.Path, u.RawQuery = prefix+target.Path, target.RawQuery
	u.RawPath = (&url.URL{Path: prefix}).EscapedPath() + target.EscapedPath()
	body := io.Reader(http.NoBody)
	switch {
	case whole != nil:
		body = bytes.NewReader(whole)
	case x.Body != nil:
		body = &requestBody{lifetime: &x.lifetime}
	case x.WantsUpgrade() && x.Method == http.MethodGet:
		// net/http sends a GET without a body again, even if upstream has executed it.
		body = emptyBody{http.NoBody}
	}
	out, err := http.NewRequestWithContext(ctx, x.Method, base.String(), body)
	if err != nil {
		return nil, err
	}
	out.URL = &u // parsing the URL again would cut it at a #
	if err := copyHeader(out.Header, x.Header); err != nil {
		return nil, err
	}
	addForwardedFor(out.Header, x.Conn)
	if x.Identity.ActsAsAnother() {
		dropCredentials(out.Header) // upstream would read them as the proxy's
	}
	if x.Body != nil && whole == nil {
		out.ContentLength = x.Body.Length
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // otherwise net/http adds its own
	}
	// If a request has one of these headers, net/http may send it again although upstream has
	// executed it. Net/http does not recognize the headers if their names are in lower case.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values := out.Header[name]; values != nil {
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = values
		}
	}
	if x.WantsUpgrade() {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", x.Header.Get("Upgrade"))
	}
	return out, nil
}

func (x *roundTrip) Read(p []byte) (int, error) {
	n, err := x.upstream.Read(p)
	if n > 0 {
		x.within = x.lines && p[n-1] != '\n'
	}
	if err != nil && x.ended.Load() == drained {
		if err = io.EOF; x.within {
			err = io.ErrUnexpectedEOF // a part of an event must not look whole
		}
	}
	return n, err
}

// Close implements io.Closer. Over HTTP/2, each close of upstream's body would return what is
// unread to the window of the connection once more, until the window overflows.
func (x *roundTrip) Close() (err error) {
	x.closing.Do(func() { err = x.upstream.Close() })
	x.finish()
	return err
}

// stops returns the Status for a request that the proxy's end has cancelled. Without a response,
// the client would see a connection that ends, and might send the request again.
func stops(harmless bool) metav1.Status {
	if harmless {
		return exchange.Unavailable("watchproxy stops")
	}
	return exchange.Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		"watchproxy stops before the upstream apiserver has answered, "+
			"so the request may have been executed")
}

// unanswered returns the Status for a request without a response. Only a harmless one may be
// retried: upstream has not received it, or it is a read.
func unanswered(err error, sent, harmless bool) metav1.Status {
	var timeout interface{ Timeout() bool }
	switch {
	case strings.Contains(err.Error(), "response headers exceeded"), // net/http has no type for it
		strings.Contains(err.Error(), "response header list larger"): // over HTTP/2
		return longHeader()
	case sent && errors.As(err, &timeout) && timeout.Timeout():
		return exchange.Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			"the upstream apiserver did not answer in time")
	case harmless && sent:
		return exchange.Unavailable("the upstream apiserver gave no complete answer")
	case harmless:
		return exchange.Unavailable("the upstream apiserver cannot be reached")
	}
	return exchange.BadGateway("the connection to the upstream apiserver broke before its " +
		"response, so the request may have been executed")
}

// BrokenBody returns the response to a request whose body is malformed or too long, or nil.
func BrokenBody(req *exchange.Request) *exchange.Response {
	switch err := req.Body.Failure(); {
	case err == nil:
		return nil
	case errors.Is(err, exchange.ErrBodyTooLarge):
		return req.Refuse(exchange.BodyTooLarge(req.Body.Most))
	default:
		return exchange.StatusResponse(exchange.BadRequest("request body: " + err.Error()))
	}
}
