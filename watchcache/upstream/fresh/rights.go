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
// answer is at most RightsLast old, unless upstream does not answer. If upstream refuses lists or
// watches, the feed ends.
func (f *Feed) Allowed(ctx context.Context, verb string) error {
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
	trying, cancel := context.WithTimeout(ctx, feed.Patience)
	defer cancel()
	err := f.Client.Try(trying, verb, f.Cache().Resource())
	switch {
	case err == nil, apierrors.IsNotFound(err):
		last = right{at: time.Now()}
	case refused(err) && verb == "get":
		last = right{time.Now(), errMayNotGet} // not err, after which a narrower scope would be tried
	case refused(err):
		last = right{time.Now(), fmt.Errorf("the proxy itself may not %s: %w", verb, err)}
		f.Interrupt(err)
	case ctx.Err() == nil:
		last.at = time.Now() // nobody has decided
	}
	return last.refused
}

func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }
