package exchange

import (
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

// This file maps what can go wrong to the Status that kube-apiserver sends.

// Failure is the Status of a failed request.
func Failure(code int, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code),
	}
}

// NotFound says that an object is not there.
func NotFound(rt Route) metav1.Status {
	resource := rt.GVR.GroupResource()
	s := Failure(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resource, rt.Name))
	s.Details = &metav1.StatusDetails{Name: rt.Name, Group: resource.Group, Kind: resource.Resource}
	return s
}

// ClientGone is for a client that has left. It is shown to nobody.
func ClientGone() *Response {
	return StatusResponse(Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the client has left"), FromProxy)
}

// TooManyRequests says that more wait for upstream than may.
func TooManyRequests() metav1.Status {
	s := Failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		"too many requests wait for the upstream apiserver, please try again later")
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}

// BadRequest says that a request is malformed.
func BadRequest(message string) metav1.Status {
	return Failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, message)
}

// URITooLong says that a path and query are longer than is accepted.
func URITooLong(most int) metav1.Status {
	return Failure(http.StatusRequestURITooLong, metav1.StatusReasonUnknown, fmt.Sprintf("request URI too long: limit is %d bytes", most))
}

// BodyTooLarge is kube-apiserver's refusal of a body.
func BodyTooLarge(most int64) metav1.Status {
	return Failure(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
		fmt.Sprintf("Request entity too large: limit is %d", most))
}

// Fail answers with a Status, in the form that the client takes for one.
func (r *Request) Fail(s metav1.Status, from Source) *Response {
	resp := StatusResponse(s, from)
	body, contentType := wire.NegotiateError(r.Header.Get("Accept"), r.Pretty()).Status(&s)
	resp.Bytes = body
	resp.Header.Set("Content-Type", contentType)
	r.Stamp(resp)
	return resp
}

// StatusResponse is a Status as a response.
func StatusResponse(s metav1.Status, from Source) *Response {
	r := NewResponse(int(s.Code), from)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		r.Header.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	body, contentType := wire.Choice{}.Status(&s)
	r.Header.Set("Content-Type", contentType)
	r.Bytes = body
	return r
}

// NoRequest refuses what upstream might not take for a request at all, nor what follows
// it on the same connection.
func NoRequest(status metav1.Status) *Response {
	resp := StatusResponse(status, FromProxy)
	resp.Close = true
	return resp
}
