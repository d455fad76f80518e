package upstream

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// expired is the reason of a relist after upstream has lost the history.
const expired = "expired"

// verdict decides what follows the end of a stream. A nil error is a clean end.
func (f *Feed) verdict(ctx context.Context, err error) (servers.Action, string) {
	switch {
	case err == nil:
		return servers.Resume, ""
	case errors.Is(err, errWentBack):
		f.newEpoch = true
		return servers.Relist, "went-back"
	case errors.Is(err, errDiffers):
		f.newEpoch = true // its watches have missed an unknown number of events
		return servers.Relist, "self-check"
	case errors.Is(err, errCutShort):
		return servers.Relist, "cut-short"
	case errors.Is(err, watchcache.ErrDiverged), errors.Is(err, errOtherEpoch):
		return servers.Relist, "diverged"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return servers.Relist, expired
	case apierrors.IsInvalid(err) && !f.paged:
		f.paged = true
		return servers.Relist, "no-streaming"
	case apierrors.IsTooManyRequests(err):
		return servers.Resume, ""
	case client.IsTooLarge(err):
		// Upstream lags behind the cache, or was restored to an earlier state. Only
		// a consistent read can tell.
		if f.wentBack(ctx) {
			f.newEpoch = true
			return servers.Relist, "went-back"
		}
		return servers.Resume, ""
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err), apierrors.IsBadRequest(err),
		errors.Is(err, client.ErrNoEncoding), errors.Is(err, object.ErrOpaqueResourceVersion), errors.Is(err, object.ErrMalformed):
		return servers.GiveUp, ""
	}
	return servers.Resume, ""
}

// wentBack probes and returns whether upstream's revision went back.
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
