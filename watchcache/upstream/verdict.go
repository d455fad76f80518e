package upstream

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

type action int

const (
	resume action = iota // try again what was interrupted
	relist               // read the state again
	giveUp
)

// expired is why a state is read again whose history upstream has lost.
const expired = "expired"

// verdict decides what follows the end of a stream. A nil error is a clean end.
func (f *Feed) verdict(ctx context.Context, err error) (action, string) {
	switch {
	case err == nil:
		return resume, ""
	case errors.Is(err, errWentBack):
		f.newEpoch = true
		return relist, "went-back"
	case errors.Is(err, errDiffers):
		f.newEpoch = true // nobody knows what its watches have missed
		return relist, "self-check"
	case errors.Is(err, errCutShort):
		return relist, "cut-short"
	case errors.Is(err, watchcache.ErrDiverged), errors.Is(err, errOtherEpoch):
		return relist, "diverged"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return relist, expired
	case apierrors.IsInvalid(err) && !f.paged:
		f.paged = true
		return relist, "no-streaming"
	case apierrors.IsTooManyRequests(err):
		return resume, ""
	case client.IsTooLarge(err):
		// Upstream lags behind us, or was restored to an earlier state. Only
		// a consistent read can tell.
		if f.wentBack(ctx) {
			f.newEpoch = true
			return relist, "went-back"
		}
		return resume, ""
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err), apierrors.IsBadRequest(err),
		errors.Is(err, client.ErrNoEncoding), errors.Is(err, object.ErrOpaqueResourceVersion), errors.Is(err, object.ErrMalformed):
		return giveUp, ""
	}
	return resume, ""
}

// wentBack asks for upstream's revision.
func (f *Feed) wentBack(ctx context.Context) bool {
	s, err := f.cache.Snapshot()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	p, err := f.client.Probe(ctx, f.cache.Resource())
	return err == nil && p.RV < s.ResourceVersion()
}
