package fresh

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// RightsLast is how long upstream's answer about a right of the proxy is trusted.
const RightsLast = 10 * time.Second

// right is upstream's last answer about one verb.
type right struct {
	at      time.Time
	refused error // 401 or 403; nil if the verb is allowed
}

var errMayNotGet = errors.New("upstream does not allow the proxy itself to get such objects")

// newRights returns the rights of a new feed. To fill its cache, a feed has to list and to watch.
func newRights() map[string]chan right {
	rights := map[string]chan right{}
	for verb, at := range map[string]time.Time{"get": {}, "list": time.Now(), "watch": time.Now()} {
		rights[verb] = make(chan right, 1)
		rights[verb] <- right{at: at}
	}
	return rights
}

// Allowed returns an error if upstream refuses the proxy itself a verb within the feed's scope. The
// answer is at most RightsLast old, unless upstream does not answer. The feed goes on: as upstream's
// own, watches that are open stay open.
func (f *Feed) Allowed(ctx context.Context, verb string) error {
	if verb == "get" {
		if err := f.Allowed(ctx, "list"); err != nil {
			return err // a narrower scope may be allowed
		}
	}
	var last right
	select {
	case last = <-f.rights[verb]:
		defer func() { f.rights[verb] <- last }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %s: may the proxy %s: %w", watchcache.ErrNotReady, f, verb, ctx.Err())
	}
	if _, lost := f.Lost(); lost || time.Since(last.at) < RightsLast {
		return last.refused
	}
	trying, cancel := context.WithTimeout(ctx, feed.Patience/2) // a get asks twice
	defer cancel()
	err := f.Client.Try(trying, verb, f.Cache().Resource())
	switch {
	case err == nil, apierrors.IsNotFound(err):
		last = right{at: time.Now()}
	case !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err):
		if ctx.Err() == nil {
			last.at = time.Now() // nobody has decided
		}
	case verb == "get":
		last = right{time.Now(), errMayNotGet} // after err, a feed of a narrower scope would start
	default:
		last = right{time.Now(), fmt.Errorf("the proxy itself may not %s: %w", verb, err)}
	}
	return last.refused
}
