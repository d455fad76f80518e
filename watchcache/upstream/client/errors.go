package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// ErrPartial says that upstream cut a list that was asked for as a whole.
var ErrPartial = errors.New("upstream gave a page instead of the whole list")

// Answered tells that an error is what upstream said.
func Answered(err error) bool {
	_, ok := errors.AsType[*apierrors.StatusError](err)
	return ok
}

// Doubtful tells that upstream may be away, or about to: it gave no answer, or one that a server
// gives while it starts or ends.
func Doubtful(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return !ok || status.ErrStatus.Code >= 500
}

// NoAnswer tells that upstream said nothing.
func NoAnswer(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, context.DeadlineExceeded)
}

// Sleep waits, and tells whether it was not interrupted.
func Sleep(ctx context.Context, d time.Duration) bool {
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

// EventError is the Status of an ERROR event.
func EventError(e Event, encoding object.Encoding) error {
	var status metav1.Status
	unmarshal := func() error { return json.Unmarshal(e.Object, &status) }
	if encoding == object.Protobuf {
		unmarshal = func() error { return status.Unmarshal(e.Object) }
	}
	if err := unmarshal(); err != nil {
		return fmt.Errorf("%w: ERROR event without a Status", object.ErrMalformed)
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// IsTooLarge tells that upstream has not reached a resourceVersion yet.
func IsTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, "ResourceVersionTooLarge")
}

// Ended is what the end of a stream means: a clean end is no error, unless the
// stream had not delivered what it was opened for.
func Ended(err error, early bool) error {
	switch {
	case errors.Is(err, io.EOF) && early:
		return fmt.Errorf("watch ended before the initial state was complete: %w", io.ErrUnexpectedEOF)
	case errors.Is(err, io.EOF):
		return nil
	}
	return fmt.Errorf("read watch: %w", err)
}

// ErrUnavailable says that a feed has not been able to sync so far.
var ErrUnavailable = errors.New("upstream is not available")
