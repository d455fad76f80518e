package forward

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strings"

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

// RoundTrip implements http.RoundTripper.
func (o *own) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.way.RoundTrip(req)
	if err != nil || !refusesCredentials(req, resp) {
		return resp, err
	}
	body, ok := bodyAgain(req)
	if !ok {
		return resp, nil
	}
	_, _ = io.CopyN(io.Discard, resp.Body, refusalMost) // so that the connection can be used again
	_ = resp.Body.Close()
	again := req.Clone(req.Context())
	again.Body = body
	again.Header.Del("Authorization") // client-go added the refused token, and would keep it
	return o.way.RoundTrip(again)
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

// refusalMost is the number of bytes in which a refusal is recognized.
const refusalMost = 4 << 10

// refusesCredentials reports whether the apiserver refuses the credentials of a request. A pod, a
// service or the server of an aggregated API may also answer 401.
func refusesCredentials(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusUnauthorized || accepted(resp) {
		return false
	}
	if path := req.URL.Path + "/"; !strings.Contains(path, "/proxy/") {
		return true
	}
	body := beginning(resp)
	for _, word := range []string{"Status", metav1.StatusFailure, string(metav1.StatusReasonUnauthorized)} {
		if !bytes.Contains(body, []byte(word)) {
			return false
		}
	}
	return true
}

// forbiddenVerb finds the verb in the apiserver's refusal of a request, in any encoding of a Status.
// An impersonation's verb can have a suffix, as in impersonate:user-info.
var forbiddenVerb = regexp.MustCompile(`forbidden: User .*?" cannot ([a-z]+)`)

// refusesImpersonation reports whether the apiserver refuses an impersonation.
func refusesImpersonation(resp *http.Response) bool {
	if resp.StatusCode != http.StatusForbidden || accepted(resp) {
		return false
	}
	found := forbiddenVerb.FindSubmatch(beginning(resp))
	return found != nil && string(found[1]) == "impersonate"
}

// accepted reports whether the apiserver has accepted the credentials and the impersonation of a
// request. It then assigns a flow schema to the request, except for a few long-running requests.
func accepted(resp *http.Response) bool {
	return resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) != ""
}

// beginning returns the beginning of a response's body, which can still be read.
func beginning(resp *http.Response) []byte {
	read, _ := io.ReadAll(io.LimitReader(resp.Body, refusalMost)) // the reader of the rest sees an error
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
	case x.impersonates && refusesImpersonation(in):
		s = exchange.RetryLater(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"the upstream apiserver does not let the proxy impersonate the user of the request")
		klog.ErrorS(nil, "Upstream does not let the proxy impersonate a user: give the proxy the rights in config/rbac-impersonation.yaml, or rbac.impersonation of the chart")
	default:
		return nil
	}
	return &s
}
