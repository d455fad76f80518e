package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// This file maps what can go wrong to the Status that kube-apiserver sends.

func failure(code int, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code),
	}
}

// notFound says that an object is not there.
func notFound(rt route) metav1.Status {
	resource := rt.gvr.GroupResource()
	s := failure(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resource, rt.name))
	s.Details = &metav1.StatusDetails{Name: rt.name, Group: resource.Group, Kind: resource.Resource}
	return s
}

// expired says that a watch cannot start where it was asked to.
func (r *read) expired(err *watchcache.TooOldError) metav1.Status {
	message := err.Error()
	if r.resource.NoWatchCache {
		message = "The resourceVersion for the provided watch is too old." // etcd's
	}
	return failure(http.StatusGone, metav1.StatusReasonExpired, message)
}

// appendEnd tells why the watch cannot go on, if its client could not find out by coming back:
// the cache began anew, and may get to the client's resourceVersion by another history; or
// a relist jumped over changes that this watch cannot be told.
func (w *watching) appendEnd(out *chunkWriter, err error) {
	tooOld, jumped := errors.AsType[*watchcache.TooOldError](err)
	if !jumped {
		now, gone := w.cache.Snapshot()
		if !errors.Is(err, watchcache.ErrEnded) || gone != nil {
			return
		}
		tooOld = &watchcache.TooOldError{From: w.start, Oldest: now.ResourceVersion()}
	}
	status := w.expired(tooOld)
	buf := out.pending()
	*buf = w.form.AppendError(*buf, &status)
}

// unreachable says that a request could not be forwarded.
func unreachable(err error) metav1.Status {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the upstream apiserver did not answer in time")
	}
	s := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the upstream apiserver cannot be reached")
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}

// clientGone is for a client that has left. It is shown to nobody.
func clientGone() *response {
	return statusResponse(failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the client has left"), fromProxy)
}

// tooManyRequests says that more wait for upstream than may.
func tooManyRequests() metav1.Status {
	s := failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		"too many requests wait for the upstream apiserver, please try again later")
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}

// pageRefusals tell what to do about each reason to refuse what a web page may have sent.
var pageRefusals = map[string]string{
	reasonHost:        "%s is not a loopback name, and a web page can have led it here: name localhost, 127.0.0.0/8 or [::1]",
	reasonSite:        "a page of another site sent this request to %s, says Sec-Fetch-Site: type the address into the browser, or use another client",
	reasonOrigin:      "a page of another origin than %s sent this request, says Origin: a client other than a browser should leave Origin out",
	reasonUntold:      "an old browser may have sent this request to %s for any page: use a newer one, or a User-Agent without Mozilla",
	reasonContentType: "any web page could have a browser send this request to %s: give it the Content-Type of its body, such as application/json",
	reasonInteractive: "browsers may not exec, attach, forward ports or reach kubelets through %s: use kubectl, or a bearer token where clients are authenticated",
}

// forbiddenPage refuses a request to an origin that a web page may have made a browser send.
func forbiddenPage(reason, to string) metav1.Status {
	return failure(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(pageRefusals[reason], strconv.Quote(to)))
}

// forbiddenImpersonation refuses to mix a client's impersonation with ours.
func forbiddenImpersonation() metav1.Status {
	return failure(http.StatusForbidden, metav1.StatusReasonForbidden,
		"the proxy's own identity is an impersonated one, so Impersonate headers are not accepted")
}

// unspeakable refuses to name a user upstream that would not arrive as who it is.
func unspeakable() metav1.Status {
	return failure(http.StatusForbidden, metav1.StatusReasonForbidden,
		"the name, uid, groups or extra of the user cannot be passed on: they are empty, have spaces around them or are no header values")
}

func badRequest(message string) metav1.Status {
	return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, message)
}

// uriTooLong says that a path and query are longer than is accepted.
func uriTooLong(most int) metav1.Status {
	return failure(http.StatusRequestURITooLong, metav1.StatusReasonUnknown, fmt.Sprintf("request URI too long: limit is %d bytes", most))
}

// bodyTooLarge is kube-apiserver's refusal of a body.
func bodyTooLarge(most int64) metav1.Status {
	return failure(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
		fmt.Sprintf("Request entity too large: limit is %d", most))
}

// fail answers with a Status, in the form that the client takes for one.
func (r *request) fail(s metav1.Status, from source) *response {
	resp := statusResponse(s, from)
	body, contentType := wire.NegotiateError(r.header.Get("Accept"), r.pretty()).Status(&s)
	resp.bytes = body
	resp.header.Set("Content-Type", contentType)
	r.stamp(resp)
	return resp
}

// statusResponse is a Status as a response.
func statusResponse(s metav1.Status, from source) *response {
	r := newResponse(int(s.Code), from)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		r.header.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	body, contentType := wire.Choice{}.Status(&s)
	r.header.Set("Content-Type", contentType)
	r.bytes = body
	return r
}
