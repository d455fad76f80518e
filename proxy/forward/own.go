package forward

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"sync/atomic"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// This file recognizes responses by which upstream refuses the proxy itself. A client whose
// credentials were accepted must not take such a response as the refusal of its own.

// Own returns a round tripper for requests with the proxy's own credentials. Upstream has not
// executed a request that it answers with 401. Client-go then runs the exec plugin or reads the
// token's file again, but only for later requests. So Own sends the request once more, if its body
// can be sent again.
func Own(way http.RoundTripper) http.RoundTripper { return &own{way} }

type own struct{ way http.RoundTripper }

func (o *own) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.way.RoundTrip(req)
	if err != nil || !refusesCredentials(req, resp) {
		return resp, err
	}
	body, ok := bodyAgain(req)
	if !ok {
		return resp, nil
	}
	// The connection can be used again.
	first, _ := io.ReadAll(io.LimitReader(resp.Body, refusalMost))
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(first))
	var sent atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	again := req.Clone(ctx)
	again.Body = body
	again.Header.Del("Authorization") // client-go added the refused token, and would keep it
	second, err := o.way.RoundTrip(again)
	if err != nil && !sent.Load() { // for example, there are no new credentials
		return resp, nil
	}
	return second, err
}

// emptyBody is an empty body that net/http does not know to be empty.
type emptyBody struct{ io.ReadCloser }

// bodyAgain returns the body for sending a request again. It returns false if there is none.
func bodyAgain(req *http.Request) (body io.ReadCloser, ok bool) {
	if _, empty := req.Body.(emptyBody); empty || req.Body == nil || req.Body == http.NoBody {
		return req.Body, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	return body, err == nil
}

const refusalMost = 4 << 10

// relayed finds the paths at which a pod, a kubelet or a service may answer.
var relayed = regexp.MustCompile(`/(proxy|log|exec|attach|portforward)(/|$)`)

// refusesCredentials reports whether the apiserver refuses the credentials of a request. A pod, a
// service, a kubelet or the server of an aggregated API may also answer 401.
func refusesCredentials(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusUnauthorized || accepted(resp) {
		return false
	}
	if !relayed.MatchString(req.URL.Path) {
		return true
	}
	// The message is the reason. For a kubelet's 401, the apiserver writes another message.
	const unauthorized = string(metav1.StatusReasonUnauthorized)
	body := ownBody(req, resp)
	return bytes.Contains(body, []byte(metav1.StatusFailure)) &&
		bytes.Count(body, []byte(unauthorized)) > 1
}

// forbiddenVerb finds the verb in the apiserver's refusal of a request, in any encoding of a
// Status: YAML folds lines. An impersonation's verb can have a suffix: impersonate:user-info.
var forbiddenVerb = regexp.MustCompile(`forbidden:\s+User\s+(?s:.*?)"\s+cannot\s+([a-z]+)`)

// refusesImpersonation reports whether the apiserver refuses an impersonation. The response to HEAD
// does not tell it.
func refusesImpersonation(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusForbidden || accepted(resp) {
		return false
	}
	found := forbiddenVerb.FindSubmatch(ownBody(req, resp))
	return found != nil && string(found[1]) == "impersonate"
}

// accepted reports whether the apiserver has accepted the credentials and the impersonation of a
// request. It then assigns a flow schema to the request, except for a few long-running requests.
func accepted(resp *http.Response) bool {
	return resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) != ""
}

// ownBody returns the beginning of a response's body, which can still be read. It returns nil if
// the body may be a stream, which is none of the apiserver's errors.
func ownBody(req *http.Request, resp *http.Response) []byte {
	if resp.ContentLength < 0 && relayed.MatchString(req.URL.Path) {
		return nil
	}
	// The reader of the rest sees an error.
	read, _ := io.ReadAll(io.LimitReader(resp.Body, refusalMost))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), resp.Body), resp.Body}
	return read
}

// refusal returns the Status for the client if upstream refuses the proxy itself, else nil. The
// request has not been executed.
func (x *roundTrip) refusal(out *http.Request, in *http.Response) *metav1.Status {
	var s metav1.Status
	switch {
	case x.asProxy && refusesCredentials(out, in):
		s = exchange.Unreviewed()
	case x.impersonates && refusesImpersonation(out, in):
		s = exchange.Unavailable(
			"the upstream apiserver does not let the proxy impersonate the user of the request")
		klog.ErrorS(nil, "Upstream does not let the proxy impersonate a user: give the proxy the "+
			"rights in config/rbac-impersonation.yaml, or rbac.impersonation of the chart")
	default:
		return nil
	}
	return &s
}
