package access

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// RequestInfos parses paths like kube-apiserver.
var RequestInfos = request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

type filter = func(
	http.Handler, authorizer.UnconditionalAuthorizer, runtime.NegotiatedSerializer,
) http.Handler

// newImpersonation returns a handler with a filter. The error of a failed review goes past it: the
// filter would count it as a refusal and tell it to the client.
func newImpersonation(a authorizer.AuthorizerFunc, with filter) http.Handler {
	reviewed := func(
		ctx context.Context, attributes authorizer.Attributes,
	) (authorizer.Decision, string, error) {
		r, ok := attributes.(*authorizer.AttributesRecord)
		if ok && r.APIGroup == "" && r.APIVersion == "" {
			versioned := *r
			versioned.APIVersion = "v1" // as with constraints
			attributes = &versioned
		}
		decision, reason, err := a(ctx, attributes)
		if err != nil {
			ctx.Value(recorderKey{}).(*recorder).failed = err
		}
		return decision, reason, nil
	}
	note := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.(*recorder).user, _ = request.UserFrom(req.Context())
	})
	return with(note, authorizer.AuthorizerFunc(reviewed), scheme.Codecs)
}

// Refusal is the response to a request that may not impersonate.
type Refusal struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Impersonate returns the user of a caller's request: the caller, or the one in its Impersonate
// headers if reviews allow it. A refusal has the apiserver's text. The error is ErrUnavailable.
func (a *Access) Impersonate(caller *Caller, req *http.Request) (user.Info, *Refusal, error) {
	info, err := RequestInfos.NewRequestInfo(req)
	if err != nil {
		return nil, &Refusal{
			Code:   http.StatusBadRequest,
			Header: http.Header{},
			Body:   []byte(err.Error() + "\n"),
		}, nil
	}
	req = req.WithContext(request.WithRequestInfo(req.Context(), info))
	return impersonate(a.constrained, caller, req)
}

func impersonate(
	checked http.Handler, caller *Caller, req *http.Request,
) (user.Info, *Refusal, error) {
	v := &recorder{Refusal: Refusal{Code: http.StatusOK, Header: http.Header{}}}
	ctx := context.WithValue(req.Context(), recorderKey{}, v)
	asked := req.WithContext(request.WithUser(ctx, caller.User))
	asked.Header = req.Header.Clone() // the filter deletes the headers that it has evaluated
	checked.ServeHTTP(v, asked)
	switch {
	case v.user != nil:
		return v.user, nil, nil
	case v.failed != nil:
		return nil, nil, v.failed
	}
	return nil, &v.Refusal, nil
}

type recorderKey struct{}

type recorder struct {
	Refusal
	user   user.Info
	failed error // of a review
}

func (v *recorder) Header() http.Header { return v.Refusal.Header }

func (v *recorder) WriteHeader(code int) { v.Code = code }

func (v *recorder) Write(p []byte) (int, error) {
	v.Body = append(v.Body, p...)
	return len(p), nil
}
