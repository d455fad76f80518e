package documents

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// Most limits the bytes of all copies. The documents of kube-apiserver 1.36 in JSON need 9 MiB,
	// including 2.2 MB for /openapi/v2.
	Most = 64 << 20
	// bodyMost limits a document, in bytes. Longer documents are forwarded.
	bodyMost = 8 << 20
	// formsMost limits the questions with a known form. A question needs up to 1 KiB.
	formsMost = 1024
	// pace is the mean time between two revalidations of a document, after the first ones. So a
	// crowd costs upstream some 10 ms of processor time a second, and a few readers do not wait.
	pace, burst = 50 * time.Millisecond, 20
	// patience limits a revalidation. After that, each client's request is forwarded.
	patience = 10 * time.Second
)

// Copies are upstream's documents.
type Copies struct {
	Config
	forms   *recent[string, form]
	kept    *recent[form, *document]
	flights fair.Coalescer[*outcome]
}

// Config has the parts of Copies.
type Config struct {
	// Most limits the bytes of all copies.
	Most int64
	// Send sends the proxy's own request upstream.
	Send func(context.Context, *exchange.Request) *exchange.Response
	// Workspace provides the memory to read new documents.
	Workspace *fair.Workspace
	// Access authorizes clients. If it returns nil, requests have the proxy's rights.
	Access func() *access.Access
	// Serving ends when the server ends.
	Serving context.Context //nolint:containedctx // it is the server's
	// Revalidated counts a request by its result: unchanged, new or failed. Shared counts a request
	// that was answered with another request's document.
	Revalidated func(result string)
	Shared      func()
}

// New returns Copies.
func New(c Config) *Copies {
	return &Copies{Config: c, flights: fair.Coalescer[*outcome]{Pace: pace, Burst: burst}, forms: newRecent[string, form](formsMost), kept: newRecent[form, *document](c.Most)}
}

// outcome is the result of a revalidation. The document is nil if requests must be forwarded.
type outcome struct {
	*document
	from exchange.Source
}

// LetGo implements fair.Answer. The garbage collector frees the document.
func (*outcome) LetGo(int) {}

// Answer answers a read of a document, or returns nil if upstream must answer.
func (c *Copies) Answer(ctx context.Context, req *exchange.Request) *exchange.Response {
	q, ok := parse(req)
	if !ok {
		return nil
	}
	waiting, stop := req.Attended(ctx)
	defer stop()
	if !c.allows(waiting, req) {
		return nil
	}
	found, flew := c.flights.Share(waiting, q.key(), 0, func(bool) (*outcome, fair.For) { return c.revalidate(q, req) })
	switch {
	case found != nil && found.document != nil:
		if !flew && found.from == exchange.FromUpstream {
			c.Shared()
		}
		return found.answer(req, found.from)
	case errors.Is(waiting.Err(), context.Canceled):
		return exchange.ClientGone()
	}
	return nil
}

// allows reports whether upstream is known to allow a read. Otherwise upstream decides.
func (c *Copies) allows(ctx context.Context, req *exchange.Request) bool {
	switch {
	case req.Identity == nil:
		return true
	case req.Identity.Anonymous():
		return false
	}
	u := req.Identity.User
	decision, reason, err := c.Access().Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: "get", Path: req.Path})
	if err != nil || decision != authorizer.DecisionAllow {
		return false
	}
	req.Decided = exchange.Decision{User: u, Allowed: true, Reason: reason}
	return true
}

// revalidate sends a request for all waiting clients, so it continues if a client leaves. It uses
// the claims of the client that leads. If these would wait for the client's other requests, another
// client must lead.
func (c *Copies) revalidate(q question, req *exchange.Request) (*outcome, fair.For) {
	ctx, cancel := context.WithTimeout(c.Serving, patience)
	defer cancel()
	known := c.kept.get(c.forms.get(q.key()))
	var small *fair.Room
	if known == nil { // there will be a body
		var err error
		if small, err = c.hold(ctx, req, exchange.SmallBody); err != nil {
			return c.failed(err)
		}
		defer small.GiveBack()
	}
	own := q.request(known)
	own.For = req.User()
	resp := c.Send(ctx, own)
	defer resp.CloseBody()
	unchanged := resp.Status == http.StatusNotModified
	switch {
	case resp.Source == exchange.FromProxy && resp.Status == http.StatusTooManyRequests:
		return c.failed(fair.ErrBusy)
	case resp.Source != exchange.FromUpstream, unchanged && known == nil, isRefusal(resp.Status):
		return c.failed(nil)
	case unchanged:
		c.Revalidated("unchanged")
		return &outcome{known, exchange.FromCache}, fair.All
	}
	if err := c.read(ctx, req, resp, small); err != nil {
		return c.failed(err)
	}
	c.Revalidated("new")
	return &outcome{c.keep(q, newDocument(resp)), exchange.FromUpstream}, fair.All
}

// failed returns the outcome of a revalidation that has failed.
func (c *Copies) failed(err error) (*outcome, fair.For) {
	if errors.Is(err, fair.ErrBusy) {
		return nil, fair.Another
	}
	c.Revalidated("failed")
	return nil, fair.All
}

// isRefusal reports whether the response may differ between clients. A missing document is missing
// for all clients.
func isRefusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError
}

// hold waits for the memory to read a body of at most most bytes.
func (c *Copies) hold(ctx context.Context, req *exchange.Request, most int64) (*fair.Room, error) {
	const work = 3 // the buffer is doubled and copied as it grows
	return c.Workspace.Hold(ctx, fair.Claim{User: req.User(), Size: work * most, Held: req.Held(), IfIdle: req.Identity != nil})
}

// read reads a response to its end, if it is not too long. small is the memory for a small body, or
// nil.
func (c *Copies) read(ctx context.Context, req *exchange.Request, resp *exchange.Response, small *fair.Room) (err error) {
	room := small
	for _, most := range []int64{exchange.SmallBody, 1 << 20, bodyMost} {
		if room == nil {
			if room, err = c.hold(ctx, req, most); err != nil {
				return err
			}
		}
		err = resp.Buffer(most)
		room.GiveBack()
		if room = nil; err == nil {
			return nil
		}
	}
	return err
}

// keep stores a document that upstream can revalidate, in place of the question's previous
// document. If there is an equal copy, keep returns it, so that slow clients hold only one
// document.
func (c *Copies) keep(q question, d *document) *document {
	key, of := q.key(), d.form(q)
	if former := c.forms.get(key); former != of {
		c.kept.drop(former)
		c.forms.put(key, of, 1)
	}
	if d.tag == "" {
		return d
	}
	if kept := c.kept.get(of); kept != nil {
		return kept
	}
	c.kept.put(of, d, d.size())
	return d
}
