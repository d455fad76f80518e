package discovery

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
	// Most bounds the bytes of all copies. The documents of kube-apiserver 1.36 in JSON take 9 MiB,
	// /openapi/v2 takes 2.2 MB of them.
	Most = 64 << 20
	// bodyMost bounds one document, in bytes. Longer ones are forwarded.
	bodyMost = 8 << 20
	// formsMost bounds the questions whose form is known. A question takes up to 1 KiB.
	formsMost = 1024
	// pace is the least time between two revalidations of a document. So a crowd costs upstream some
	// 10 ms of processor time a second. Kubectl takes longer to start.
	pace = 50 * time.Millisecond
	// patience bounds a revalidation. After that, each client's request is forwarded.
	patience = 10 * time.Second
)

// Copies are upstream's documents.
type Copies struct {
	Config
	forms   *recent[string, form]
	kept    *recent[form, *document]
	flights fair.Flights[*outcome]
}

// Config has what Copies need.
type Config struct {
	// Most bounds the bytes of all copies.
	Most int64
	// Send sends a request of the proxy upstream.
	Send func(context.Context, *exchange.Request) *exchange.Response
	// Workspace has the memory to read new documents.
	Workspace *fair.Workspace
	// Access authorizes clients. If it returns nil, requests act as the proxy.
	Access func() *access.Access
	// Serving ends when the server does.
	Serving context.Context //nolint:containedctx // it is the server's
	// Revalidated counts a request by its result: unchanged, new or failed. Shared counts a
	// request that was answered with another request's document.
	Revalidated func(result string)
	Shared      func()
}

// New returns Copies.
func New(c Config) *Copies {
	return &Copies{Config: c, flights: fair.Flights[*outcome]{Pace: pace}, forms: newRecent[string, form](formsMost), kept: newRecent[form, *document](c.Most)}
}

// outcome is the result of a revalidation. The document is nil if requests have to be forwarded.
type outcome struct {
	*document
	from exchange.Source
}

// LetGo implements fair.Answer. The garbage collector frees the document.
func (*outcome) LetGo(int) {}

// Answer answers a read of a document, or returns nil if upstream has to answer.
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
	found, flew := c.flights.Share(waiting, q.key(), 0, func(bool) (*outcome, bool) { return c.revalidate(q, req), true })
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

// allows tells whether upstream is known to allow a read. Otherwise upstream decides.
func (c *Copies) allows(ctx context.Context, req *exchange.Request) bool {
	if req.Identity == nil {
		return true
	}
	decision, _, err := c.Access().Authorize(ctx, authorizer.AttributesRecord{User: req.Identity.User, Verb: "get", Path: req.Path})
	return err == nil && decision == authorizer.DecisionAllow
}

// revalidate asks upstream on behalf of all clients that wait, so it does not end if one of them
// leaves.
func (c *Copies) revalidate(q question, req *exchange.Request) *outcome {
	ctx, cancel := context.WithTimeout(c.Serving, patience)
	defer cancel()
	known := c.kept.get(c.forms.get(q.key()))
	resp := c.Send(ctx, q.request(known))
	defer resp.CloseBody()
	unchanged := resp.Status == http.StatusNotModified
	switch {
	case resp.Source != exchange.FromUpstream, unchanged && known == nil, isRefusal(resp.Status):
	case unchanged:
		c.Revalidated("unchanged")
		return &outcome{known, exchange.FromCache}
	case c.read(ctx, req, resp):
		c.Revalidated("new")
		return &outcome{c.keep(q, newDocument(resp)), exchange.FromUpstream}
	}
	c.Revalidated("failed")
	return &outcome{}
}

// isRefusal tells whether another client could get another answer. A document that does not exist
// exists for no client.
func isRefusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError
}

// read reads an answer to its end if it is not too long.
func (c *Copies) read(ctx context.Context, req *exchange.Request, resp *exchange.Response) bool {
	const work = 3 // the buffer is doubled and copied as it grows
	for _, most := range []int64{exchange.SmallBody, 1 << 20, bodyMost} {
		room := c.Workspace.Hold(ctx, fair.Claim{User: req.User(), Size: work * most, Held: req.Held()})
		if room == nil {
			return false
		}
		err := resp.Buffer(most)
		room.GiveBack()
		if err == nil {
			return true
		}
	}
	return false
}

// keep keeps a document, in place of the question's former one, if upstream can revalidate it. It
// returns an equal copy if there is one, so that clients who read slowly hold one document only.
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
