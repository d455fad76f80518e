package exchange

import (
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

// This file maps errors to the Status that kube-apiserver sends.

var typeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

// Failure returns the Status of a failed request.
func Failure(code int, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{
		TypeMeta: typeMeta,
		Status:   metav1.StatusFailure,
		Reason:   reason,
		Message:  message,
		Code:     int32(code),
	}
}

// RetryLater returns a Status that asks the client to retry after a second.
func RetryLater(code int, reason metav1.StatusReason, message string) metav1.Status {
	s := Failure(code, reason, message)
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}

// Unreviewed returns the Status for a request whose sender upstream cannot be asked about, because
// it cannot be reached or refuses the proxy's own credentials.
func Unreviewed() metav1.Status {
	return Unavailable(
		"the upstream apiserver cannot be asked to review the credentials of the request")
}

// Unavailable returns the Status for a request that was not executed, and may be retried.
func Unavailable(message string) metav1.Status {
	return RetryLater(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
}

// BadGateway returns the Status for a request without a usable response from upstream.
func BadGateway(message string) metav1.Status {
	return Failure(http.StatusBadGateway, metav1.StatusReasonInternalError, message)
}

// Forbidden returns the Status for a request that is not allowed.
func Forbidden(message string) metav1.Status {
	return Failure(http.StatusForbidden, metav1.StatusReasonForbidden, message)
}

// StatusOf returns the Status of an API error.
func StatusOf(err *apierrors.StatusError) metav1.Status {
	s := err.ErrStatus
	s.TypeMeta = typeMeta
	return s
}

// ClientLeft is the status of [ClientGone] in metrics. It is not an error of the proxy.
const ClientLeft = 499

// ClientGone returns the response for a client that has left. It is never sent.
func ClientGone() *Response {
	resp := StatusResponse(Failure(
		http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the client has left"))
	resp.MetricStatus = ClientLeft
	return resp
}

// TooManyRequests returns the Status for a request beyond a limit.
func TooManyRequests(message string) metav1.Status {
	message += ", please try again later"
	return RetryLater(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, message)
}

// TooLarge returns the Status of kube-apiserver's cache for a resourceVersion not yet reached.
func TooLarge(asked, current uint64) metav1.Status {
	s := RetryLater(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", asked, current))
	s.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return s
}

// Expired returns the Status for a resourceVersion or a continue token of a state that is gone.
func Expired(message string) metav1.Status {
	return Failure(http.StatusGone, metav1.StatusReasonExpired, message)
}

// BadRequest returns the Status for a malformed request.
func BadRequest(message string) metav1.Status {
	return Failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, message)
}

// BodyTooLarge returns kube-apiserver's Status for a body that is too large.
func BodyTooLarge(most int64) metav1.Status {
	return Failure(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
		fmt.Sprintf("Request entity too large: limit is %d", most))
}

// Refuse returns a response with a Status, in the form that the client accepts.
func (r *Request) Refuse(s metav1.Status) *Response {
	resp := StatusResponse(s)
	body, contentType := wire.NegotiateError(r.Header.Get("Accept"), r.Pretty()).Status(&s)
	resp.Body = Bytes(body)
	resp.Header.Set("Content-Type", contentType)
	r.Stamp(resp)
	return resp
}

// StatusResponse returns a response with a Status in JSON.
func StatusResponse(s metav1.Status) *Response {
	r := NewResponse(int(s.Code), FromProxy)
	r.Failure = &s
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		r.Header.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	body, contentType := wire.Choice{}.Status(&s)
	r.Header.Set("Content-Type", contentType)
	r.Body = Bytes(body)
	return r
}

// NoRequest answers input that upstream might not accept as a request. The connection ends then.
func NoRequest(status metav1.Status) *Response {
	resp := StatusResponse(status)
	resp.Last = true
	return resp
}

// CodeLabel returns the metrics' label of a status code. A pod or an aggregated API may answer with
// any code, so a code that net/http does not know has its class as its label, such as 5xx.
func CodeLabel(code int) string {
	if code == 0 || code == ClientLeft || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	const class = 100
	return strconv.Itoa(code/class) + "xx"
}
