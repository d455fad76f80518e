package upstream

import (
	"context"
	"errors"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// errPartial says that upstream cut a list that was asked for as a whole.
var errPartial = errors.New("upstream gave a page instead of the whole list")

// answered tells that an error is what upstream said.
func answered(err error) bool {
	_, ok := errors.AsType[*apierrors.StatusError](err)
	return ok
}

// doubtful tells that upstream may be away, or about to: it gave no answer, or one that a server
// gives while it starts or ends.
func doubtful(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return !ok || status.ErrStatus.Code >= 500
}

// noAnswer tells that upstream said nothing.
func noAnswer(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, context.DeadlineExceeded)
}

// sleep waits, and tells whether it was not interrupted.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
