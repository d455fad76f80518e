package grants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Watch is an open watch, which shows some namespaces.
type Watch struct {
	era   *era
	names []string
	until time.Time // all of names are allowed
	// Eras.mu guards these fields.
	waker Waker // nil until Notify
	waits bool
}

// Waker is woken when a watch has to look at its grants.
type Waker interface{ Wake() }

// Namespaces returns the namespaces that the watch shows in its state, sorted.
func (w *Watch) Namespaces() []string { return w.names }

// Narrow returns a filter for what the watch shows of a selection.
func (w *Watch) Narrow(f *object.Filter) *object.Filter { return f.Among(w.era) }

// Over reports whether the watch must end, because a decision has changed.
func (w *Watch) Over() bool { return w.era.over.Load() }

// Notify sets what is woken when the watch must end, and after Ask.
func (w *Watch) Notify(waker Waker) {
	w.era.of.mu.Lock()
	defer w.era.of.mu.Unlock()
	w.waker = waker
}

// wakeLocked wakes the watch. Before Notify, nobody waits.
func (w *Watch) wakeLocked() {
	if w.waker != nil {
		w.waker.Wake()
	}
}

// Ask asks for the decision on a namespace. The watch is woken when there is one, and may have to
// ask again.
func (w *Watch) Ask(namespace string) {
	e := w.era
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	w.waits = true
	e.questions[namespace] = struct{}{}
	select {
	case e.asked <- struct{}{}:
	default:
	}
}

// Expired reports whether Renew has to wait for reviews.
func (w *Watch) Expired() bool { return len(w.names) > 0 && access.Ended(w.until, time.Now()) }

// Renew asks about the namespaces of the state again if their decisions have expired. It fails if
// the rest of the state must not be shown. It must not be called by several goroutines at a time.
func (w *Watch) Renew(ctx context.Context) error {
	if w.Expired() {
		if err := w.era.decide(ctx, w.names); err != nil {
			return fmt.Errorf("%w: %w", ErrUnreviewed, err)
		}
		_, w.until = w.era.allowed(w.names)
	}
	if w.Over() {
		return ErrChanged
	}
	return nil
}

// Close removes the watch. The last one waits for the goroutines of its era.
func (w *Watch) Close() {
	e := w.era
	e.of.mu.Lock()
	delete(e.watches, w)
	last := len(e.watches) == 0
	if last {
		e.endLocked()
	}
	e.of.mu.Unlock()
	if last {
		e.running.Wait()
	}
}

// Right is the right to an open watch.
type Right struct {
	Access    *access.Access
	Sender    exchange.Credentials
	Asked     exchange.Asked
	Narrowing *Narrowing // nil if the watch shows all namespaces
}

// Review checks that the sender still has the right. If its error is not exchange.ErrRevoked, the
// review failed without a result. The decisions on the namespaces of a narrowed watch are renewed
// elsewhere, so that its sender only has to be the same user still.
func (r *Right) Review(ctx context.Context) error {
	sender, n := r.Sender.AsHTTP(ctx), r.Narrowing
	caller, err := r.Access.Authenticate(sender)
	var u user.Info
	if err == nil {
		u, err = r.Access.EffectiveUser(ctx, caller, sender.Header)
	}
	switch {
	case errors.Is(err, access.ErrUnavailable):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", exchange.ErrRevoked, err)
	case !n.All() && n.isOf(u):
		return nil
	case !n.All():
		return exchange.ErrRevoked
	}
	decision, _, err := r.Access.Authorize(ctx, r.Asked.Attributes(u))
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return cmp.Or(err, exchange.ErrRevoked)
}
