package access

import (
	"net/http"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// RequestInfos parses paths like kube-apiserver.
var RequestInfos = request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// newImpersonation returns the apiserver's filter. A handler behind it records the impersonated
// user.
func newImpersonation(a authorizer.Authorizer) http.Handler {
	note := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.(*verdict).user, _ = request.UserFrom(req.Context())
	})
	return impersonation.WithConstrainedImpersonation(note, a, scheme.Codecs)
}

// Refusal is the response to a request that may not impersonate.
type Refusal struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Impersonate returns the user of a caller's request: the caller, or the user in the Impersonate
// headers if the caller may impersonate that user. A refusal has the apiserver's text.
func (a *Access) Impersonate(caller *Caller, req *http.Request) (user.Info, *Refusal) {
	info, err := RequestInfos.NewRequestInfo(req)
	if err != nil {
		return nil, &Refusal{Code: http.StatusBadRequest, Header: http.Header{}, Body: []byte(err.Error() + "\n")}
	}
	ctx := request.WithRequestInfo(request.WithUser(req.Context(), caller.User), info)
	asked := req.WithContext(ctx)
	asked.Header = req.Header.Clone() // the filter deletes the headers that it has evaluated
	v := &verdict{Refusal: Refusal{Code: http.StatusOK, Header: http.Header{}}}
	a.filter.ServeHTTP(v, asked)
	if v.user == nil {
		return nil, &v.Refusal
	}
	return v.user, nil
}

// verdict is the filter's result.
type verdict struct {
	Refusal
	user user.Info
}

// Header implements http.ResponseWriter.
func (v *verdict) Header() http.Header { return v.Refusal.Header }

// WriteHeader implements http.ResponseWriter.
func (v *verdict) WriteHeader(code int) { v.Code = code }

// Write implements http.ResponseWriter.
func (v *verdict) Write(p []byte) (int, error) {
	v.Body = append(v.Body, p...)
	return len(p), nil
}
