package audit

import (
	"errors"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
)

const (
	// queuedEvents limits the waiting events in mode batch. It is the apiserver's default.
	queuedEvents = 10_000
	// queuedBytes limits the memory of waiting events, because clients control the size of an
	// event: a URI and a list of addresses can be as long as a request's header.
	queuedBytes = 64 << 20
)

// queue is the queue of mode batch. It adds a limit on bytes to the library's queue.
type queue struct {
	audit.Backend
	events, bytes atomic.Int64
}

func newQueue(to audit.Backend) *queue {
	q := &queue{}
	q.Backend = buffered.NewBackend(emptying{to, q}, buffered.BatchConfig{BufferSize: queuedEvents, MaxBatchSize: 1})
	return q
}

var errFull = errors.New("the queue is full")

// ProcessEvents implements audit.Sink. Events for which there is no room are lost.
func (q *queue) ProcessEvents(events ...*auditapi.Event) bool {
	for _, e := range events {
		size := sizeOf(e)
		if n, bytes := q.events.Add(1), q.bytes.Add(size); n > queuedEvents || bytes > queuedBytes {
			q.gone(size)
			audit.HandlePluginError(buffered.PluginName, errFull, e)
			continue
		}
		q.Backend.ProcessEvents(e)
	}
	return true
}

func (q *queue) gone(size int64) {
	q.events.Add(-1)
	q.bytes.Add(-size)
}

// emptying is the log to which a queue writes its events.
type emptying struct {
	audit.Backend
	from *queue
}

// ProcessEvents implements audit.Sink.
func (e emptying) ProcessEvents(events ...*auditapi.Event) bool {
	defer func() {
		for _, written := range events {
			e.from.gone(sizeOf(written))
		}
	}()
	return e.Backend.ProcessEvents(events...)
}

// sizeOf estimates the memory of an event, in bytes.
func sizeOf(e *auditapi.Event) int64 {
	const fixed = 2 << 10
	// The event contains the path twice.
	n := fixed + len(e.AuditID) + 2*len(e.RequestURI) + len(e.UserAgent) + textsSize(e.SourceIPs) + userSize(&e.User)
	if e.ImpersonatedUser != nil {
		n += userSize(e.ImpersonatedUser)
	}
	if e.ResponseObject != nil {
		n += len(e.ResponseObject.Raw)
	}
	return int64(n)
}

func userSize(u *authenticationv1.UserInfo) int {
	n := len(u.Username) + len(u.UID) + textsSize(u.Groups)
	for key, values := range u.Extra {
		n += len(key) + textsSize(values)
	}
	return n
}

func textsSize(texts []string) (n int) {
	const each = 24 // a string's header, and the loss by rounding
	for _, text := range texts {
		n += each + len(text)
	}
	return n
}
