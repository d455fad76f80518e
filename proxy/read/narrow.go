package read

import (
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// narrow begins to narrow a read of all namespaces to those that its sender may read. A refusal is
// upstream's answer to a read of all.
func (rd *Reader) narrow(r *read, u user.Info, refusal *exchange.Response) (err error) {
	r.refusal, r.Alone = refusal, refusal != nil
	r.narrowing, err = grants.New(grants.Config{
		Access: rd.Options().Access,
		View:   r.View,
		Asked:  r.asked(r.Path),
		User:   u,
		Watch:  r.Kind == wire.Watch,
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
		r.narrowing, r.Resumes = nil, false
		return r.refusal
	}
	if r.Resumes {
		return r.mustBegin()
	}
	r.narrowing.From(rd.grants, r.User(), r.cache, r.filter, &r.meter)
	return nil
}

// mustBegin refuses a watch that would not begin with the state. Nobody can tell which namespaces
// its client was shown before: perhaps by another replica, with another token, or before its user
// may read all.
func (r *read) mustBegin() *exchange.Response {
	return r.Refuse(exchange.Failure(
		http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		"a watch of all namespaces in the view "+r.View.Name+" cannot begin at a resourceVersion: "+
			"begin with the state, by sendInitialEvents=true with "+
			"resourceVersionMatch=NotOlderThan, or without a resourceVersion"))
}

// decideGrants finds the namespaces that a narrowed read shows in a state. It fails if the earlier
// pages of a list showed others. It returns nil unless the read is a watch that does not show all.
func (r *read) decideGrants(state watchcache.Snapshot) (*grants.Watch, error) {
	n := r.narrowing
	if n == nil {
		return nil, nil
	}
	w, err := n.Decide(r.meter.Context(), state)
	if err != nil {
		return nil, err
	}
	if !n.All() {
		r.Identity.Decided = n.Decision()
	}
	if _, seal := grants.Unseal(r.Token); r.Token != "" && seal != n.Seal() {
		return nil, grants.ErrChanged
	}
	return w, nil
}

func (r *read) selected() *derived.Selected {
	r.walk = derived.Selected{
		Store:    r.derived,
		Meter:    &r.meter,
		Resource: r.resource,
		Filter:   r.filter,
		Narrowed: !r.narrowing.All(),
	}
	if r.walk.Narrowed {
		r.walk.Within = r.narrowing.Shown()
	}
	return &r.walk
}

// selective reports whether the answer has parts of pages that other readers do not need.
func (r *reading) selective() bool { return r.filter.Selective() || !r.narrowing.All() }

// narrowFailure answers a narrowed read that failed. It is nil if upstream may answer, which knows
// nothing of views: only if the sender may read all namespaces.
func (r *read) narrowFailure(err error) *exchange.Response {
	reason := reasonOf(err)
	later := func(what string) *exchange.Response {
		return r.fail(exchange.Unavailable("the view " + r.View.Name + " " + what))
	}
	switch {
	case errors.Is(err, grants.ErrChanged):
		return r.fail(exchange.Expired(err.Error()))
	case errors.Is(err, grants.ErrUnreviewed):
		return later("cannot be shown: the upstream apiserver cannot be asked " +
			"which namespaces the user may read")
	case errors.Is(err, grants.ErrTooMany):
		return later("cannot be shown: " + err.Error())
	case r.refusal == nil:
		return nil
	case reason == Credentials, reason == Uncached, reason == NotARead:
		return r.refusal
	case reason == TooOld:
		return r.fail(exchange.Expired("The resourceVersion for the provided list is too old."))
	case reason.Stale(), reason == TooLarge, reason == TooOldWatch, reason == "":
		return later("cannot be shown now, because the cache cannot answer: " + string(reason))
	}
	return r.fail(exchange.BadRequest("the view " + r.View.Name +
		" shows some namespaces only from the cache, which cannot answer such a request: " +
		string(reason)))
}
