package read

import (
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
)

// narrow begins to narrow a read of all namespaces to those that its sender may read. A refusal is
// upstream's answer to a read of all.
func (rd *Reader) narrow(r *read, u user.Info, refusal *exchange.Response) (err error) {
	r.refusal = refusal
	r.narrowing, err = grants.New(grants.Config{
		Access: rd.Options().Access, View: r.View, Asked: r.asked(), User: u, Watch: r.Kind(r.Name) == wire.Watch,
	})
	if err != nil {
		return Credentials
	}
	return nil
}

// narrowed takes the grants of a read once its resource is known. Only collections with namespaces,
// and namespaces themselves, can be narrowed.
func (rd *Reader) narrowed(r *read) (refusal *exchange.Response) {
	if r.narrowing == nil {
		return nil
	}
	if !r.resource.Namespaced && !exchange.IsNamespaces(r.GVR.GroupResource()) {
		r.narrowing = nil
		return r.refusal
	}
	r.narrowing.From(rd.Grants, r.User(), r.cache, r.filter)
	return nil
}

// alone reports whether upstream may not answer, because it would refuse the read.
func (r *read) alone() bool { return r.refusal != nil }

// settle finds the namespaces that a narrowed read shows. Past means that the client was shown the
// state at a resourceVersion before. It fails if that may have been with other namespaces: on
// earlier pages, or before a watch resumes.
func (r *read) settle(state watchcache.Snapshot, at uint64, past bool) error {
	n := r.narrowing
	if n == nil {
		return nil
	}
	r.meter.ReleaseSlot() // before the wait for reviews
	if err := n.Settle(r.meter.Context(), state, at, past); err != nil {
		return err
	}
	if !n.All() {
		r.Decided = n.Decision()
	}
	if _, seal := grants.Unseal(r.Token); r.Token != "" && seal != n.Seal() || r.Since(r.Name) != 0 && !n.Seen().Known {
		return watch.ErrRegranted
	}
	return nil
}

// selected describes the objects that the read selects.
func (r *read) selected() *derived.Selected {
	r.walk = derived.Selected{Store: r.derived, Meter: &r.meter, Resource: r.resource, Filter: r.filter, Narrowed: !r.narrowing.All()}
	if r.walk.Narrowed {
		r.walk.Within = r.narrowing.Seen().Namespaces
	}
	return &r.walk
}

// shown returns the filter of a watch. It never changes: a watch ends when the grants do.
func (r *read) shown() *filter.Filter {
	if r.narrowing.All() {
		return r.filter
	}
	return r.filter.Among(r.narrowing.Seen().Namespaces)
}

// selective reports whether the answer has parts of pages that other readers do not need.
func (r *read) selective() bool { return r.filter.Selective() || !r.narrowing.All() }

// narrowFailure answers a narrowed read that failed. It is nil if upstream may answer, which knows
// nothing of views: only if the sender may read all namespaces.
func (r *read) narrowFailure(err error) *exchange.Response {
	reason := reasonOf(err)
	later := func(what string) *exchange.Response {
		return r.fail(exchange.RetryLater(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the view "+r.View.Name+" "+what))
	}
	switch {
	case errors.Is(err, watch.ErrRegranted) && r.Kind(r.Name) == wire.Watch:
		return r.errorEvent(exchange.Expired(err.Error()), false)
	case errors.Is(err, watch.ErrRegranted):
		return r.fail(exchange.Expired(err.Error()))
	case errors.Is(err, grants.ErrUnreviewed):
		return later("cannot be shown: the upstream apiserver cannot be asked which namespaces the user may read")
	case reason == Early:
		return r.tooEarly
	case r.refusal == nil:
		return nil
	case reason == Credentials, reason == Uncached, reason == NotARead:
		return r.refusal
	case reason == TooOld:
		return r.fail(exchange.Expired("The resourceVersion for the provided list is too old."))
	case reason.Stale(), reason == TooLarge, reason == "":
		return later("cannot be shown now, because the cache cannot answer: " + string(reason))
	}
	return r.fail(exchange.BadRequest("the view " + r.View.Name + " shows some namespaces only from the cache, which cannot answer such a request: " + string(reason)))
}
