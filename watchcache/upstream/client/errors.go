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

// ErrPartial means that upstream returned only a page of a list that was requested without a limit.
var ErrPartial = errors.New("upstream gave a page instead of the whole list")

// ErrAged means that a response has an Age header: something between this proxy and the apiserver
// answered from a cache. It shows neither the present state nor that etcd was restored.
var ErrAged = errors.New("upstream's answer comes from a cache")

// Answered reports whether an error is a response from upstream.
func Answered(err error) bool {
	_, ok := errors.AsType[*apierrors.StatusError](err)
	return ok || errors.Is(err, ErrAged)
}

// Doubtful reports whether an error suggests that upstream is down or about to go down. Either
// upstream sent no response, or the response is typical of a server that starts or stops.
func Doubtful(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return !errors.Is(err, ErrAged) && (!ok || status.ErrStatus.Code >= 500)
}

// NoAnswer reports whether an error means that upstream sent no response.
func NoAnswer(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, context.DeadlineExceeded)
}

// Sleep waits for d. It returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// EventError converts the Status of an ERROR event into an error.
func EventError(e Event, encoding object.Encoding) error {
	var status metav1.Status
	unmarshal := func() error { return json.Unmarshal(e.Object, &status) }
	if encoding == object.Protobuf {
		unmarshal = func() error { return status.Unmarshal(e.Object) }
	}
	if err := unmarshal(); err != nil {
		return object.Malformed("ERROR event without a Status")
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// Ended converts the end of a stream into an error. A clean end is nil, unless initial says
// that the initial state was incomplete.
func Ended(err error, initial bool) error {
	switch {
	case errors.Is(err, io.EOF) && initial:
		return fmt.Errorf("watch ended before its state was complete: %w", io.ErrUnexpectedEOF)
	case errors.Is(err, io.EOF):
		return nil
	}
	return fmt.Errorf("read watch: %w", err)
}
