package forward

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// rotating adds the proxy's token as client-go does with an exec plugin: it changes the header of the
// request, and has another token after a 401. It keeps what it has sent.
type rotating struct {
	mu     sync.Mutex
	next   string // the token after a 401
	token  string
	answer func(req *http.Request) *http.Response
	sent   []string // token, user and body of each request
}

// RoundTrip implements http.RoundTripper.
func (r *rotating) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Header.Get("Authorization") == "" {
		req.Header.Set("Authorization", r.token)
	}
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
		_ = req.Body.Close()
	}
	r.sent = append(r.sent, strings.Join([]string{req.Header.Get("Authorization"), req.Header.Get("Impersonate-User"), string(body)}, " "))
	resp := r.answer(req)
	if resp.StatusCode == http.StatusUnauthorized {
		r.token = r.next
	}
	return resp, nil
}

func answerOf(code int, body string, header ...string) *http.Response {
	resp := &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

const (
	unauthorizedBody = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`
	cannotBody       = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"users \"zoe\" is forbidden: User \"px\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope","reason":"Forbidden","code":403}`
	constrainedBody  = "\x0a\x9ausers \"zoe\" is forbidden: User \"px\" cannot impersonate:user-info resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope\x1a"
	notAllowedBody   = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"secrets \"a\" is forbidden: User \"zoe\" cannot get resource \"secrets\" in API group \"\" in the namespace \"b: User cannot impersonate\"","reason":"Forbidden","code":403}`
	kubeletBody      = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server has asked for the client to provide credentials ( pods/log b)","reason":"Unauthorized","details":{"name":"b","kind":"pods/log"},"code":401}`
	foldedBody       = "message: 'users \"zoe\" is forbidden: User \"system:serviceaccount:kube-system:watchproxy\"\n  cannot impersonate resource \"users\"'\n"
	flowSchema       = "X-Kubernetes-Pf-Flowschema-Uid"
)

// judge answers like an apiserver that accepts only the token "Bearer new" of the proxy.
func judge(req *http.Request) *http.Response {
	if req.Header.Get("Authorization") != "Bearer new" {
		return answerOf(http.StatusUnauthorized, unauthorizedBody)
	}
	return answerOf(http.StatusOK, "done")
}

func always(code int, body string, header ...string) func(*http.Request) *http.Response {
	return func(*http.Request) *http.Response { return answerOf(code, body, header...) }
}

// When upstream refuses the proxy's own credentials, a request is sent once more with new ones. If
// they are refused, too, or the body cannot be sent again, the client gets a 503. A refusal of the
// client's own credentials or rights, and a response of somebody behind the apiserver, pass unchanged.
func TestRefusalOfTheProxyItself(t *testing.T) {
	const again, lost = "Bearer new", "Bearer old"
	zoe := &access.Caller{User: &user.DefaultInfo{Name: "zoe"}, ActsAs: &user.DefaultInfo{Name: "zoe"}}
	token, anyone := &access.Caller{User: &user.DefaultInfo{Name: "tom"}, Token: true}, &access.Caller{User: &user.DefaultInfo{Name: "any"}}
	body := func(kept bool) *exchange.Body {
		return &exchange.Body{From: strings.NewReader("body"), Length: 4, Most: 4, Keep: kept}
	}
	unreviewed := exchange.Unreviewed().Message
	for name, test := range map[string]struct {
		identity *access.Caller
		next     string
		answer   func(*http.Request) *http.Response
		method   string
		header   http.Header
		body     *exchange.Body
		path     string
		as       string // the proxy's configuration impersonates this user

		code int
		says string
		sent []string
	}{
		"sidecar":            {next: again, answer: judge, code: 200, says: "done", sent: []string{"Bearer old  ", "Bearer new  "}},
		"sidecar, write":     {next: again, answer: judge, method: "POST", body: body(true), code: 200, says: "done", sent: []string{"Bearer old  body", "Bearer new  body"}},
		"certificate":        {identity: zoe, next: again, answer: judge, code: 200, says: "done", sent: []string{"Bearer old zoe ", "Bearer new zoe "}},
		"certificate, write": {identity: zoe, next: again, answer: judge, method: "POST", body: body(true), code: 200, says: "done", sent: []string{"Bearer old zoe body", "Bearer new zoe body"}},
		"upgrade by GET": {
			identity: zoe, next: again, answer: judge, header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}},
			code: 200, says: "done", sent: []string{"Bearer old zoe ", "Bearer new zoe "},
		},
		"upgrade by POST": {
			next: again, answer: judge, method: "POST", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
			code: 200, says: "done", sent: []string{"Bearer old  ", "Bearer new  "},
		},
		"body that is gone":   {next: again, answer: judge, method: "POST", body: body(false), code: 503, says: unreviewed, sent: []string{"Bearer old  body"}},
		"lost, sidecar":       {next: lost, answer: judge, code: 503, says: unreviewed, sent: []string{"Bearer old  ", "Bearer old  "}},
		"lost, certificate":   {identity: zoe, next: lost, answer: judge, method: "POST", body: body(true), code: 503, says: unreviewed, sent: []string{"Bearer old zoe body", "Bearer old zoe body"}},
		"lost, of other text": {next: lost, answer: always(401, "<html>log in"), code: 503, says: unreviewed, sent: []string{"Bearer old  ", "Bearer old  "}},
		"lost, to a pod":      {next: lost, answer: judge, path: "/api/v1/namespaces/a/pods/b/proxy", code: 503, says: unreviewed, sent: []string{"Bearer old  ", "Bearer old  "}},

		"token's own":     {identity: token, answer: judge, header: http.Header{"Authorization": {"Bearer tom"}}, code: 401, says: unauthorizedBody, sent: []string{"Bearer tom  "}},
		"sidecar's own":   {answer: judge, header: http.Header{"Authorization": {"Bearer tom"}}, code: 401, says: unauthorizedBody, sent: []string{"Bearer tom  "}},
		"none":            {identity: anyone, answer: always(401, unauthorizedBody), code: 401, says: unauthorizedBody, sent: []string{"Bearer old  "}},
		"pod's own":       {next: again, answer: always(401, "Status: log in"), path: "/api/v1/namespaces/a/pods/b/proxy/c", code: 401, says: "Status: log in", sent: []string{"Bearer old  "}},
		"aggregated API":  {identity: zoe, next: again, answer: always(401, unauthorizedBody, flowSchema, "a"), code: 401, says: unauthorizedBody, sent: []string{"Bearer old zoe "}},
		"error of itself": {next: again, answer: always(500, "Unauthorized"), code: 500, says: "Unauthorized", sent: []string{"Bearer old  "}},

		"no right to impersonate":              {identity: zoe, answer: always(403, cannotBody), code: 503, says: "impersonate", sent: []string{"Bearer old zoe "}},
		"no right to impersonate, constrained": {identity: zoe, answer: always(403, constrainedBody), code: 503, says: "impersonate", sent: []string{"Bearer old zoe "}},
		"no right to impersonate, by config":   {as: "root", answer: always(403, cannotBody), code: 503, says: "impersonate", sent: []string{"Bearer old root "}},
		"no right":                             {identity: zoe, answer: always(403, notAllowedBody), code: 403, says: notAllowedBody, sent: []string{"Bearer old zoe "}},
		"no right, after the impersonation":    {identity: zoe, answer: always(403, cannotBody, flowSchema, "a"), code: 403, says: cannotBody, sent: []string{"Bearer old zoe "}},
		"token without the right": {
			identity: token, answer: always(403, cannotBody), header: http.Header{"Authorization": {"Bearer tom"}, "Impersonate-User": {"zoe"}},
			code: 403, says: cannotBody, sent: []string{"Bearer tom zoe "},
		},
		"token without the right, beside a proxy that impersonates": {
			identity: token, answer: always(403, cannotBody), header: http.Header{"Authorization": {"Bearer tom"}, "Impersonate-User": {"zoe"}}, as: "root",
			code: 403, says: cannotBody, sent: []string{"Bearer tom zoe "},
		},
		"kubelet's refusal of the apiserver": {
			next: again, answer: always(401, kubeletBody), path: "/api/v1/namespaces/a/pods/b/log",
			code: 401, says: kubeletBody, sent: []string{"Bearer old  "},
		},
		"no right to impersonate, in YAML": {identity: zoe, answer: always(403, foldedBody), code: 503, says: "impersonate", sent: []string{"Bearer old zoe "}},
		"sidecar without the right": {
			answer: always(403, cannotBody), header: http.Header{"Impersonate-User": {"zoe"}},
			code: 403, says: cannotBody, sent: []string{"Bearer old zoe "},
		},
	} {
		upstream := &rotating{token: "Bearer old", next: test.next, answer: test.answer}
		config := &rest.Config{Host: "https://upstream", Impersonate: rest.ImpersonationConfig{UserName: test.as}, Transport: upstream}
		f, err := New(config, func(adapt Adaptation) (http.RoundTripper, error) {
			own := adapt(config)
			own.Transport, own.TLSClientConfig = upstream, rest.TLSClientConfig{}
			return rest.TransportFor(own)
		})
		if err != nil {
			t.Fatal(err)
		}
		req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/secrets", Header: http.Header{}, Client: &watchedClient{}, Identity: test.identity, Body: test.body}
		if test.method != "" {
			req.Method = test.method
		}
		if test.path != "" {
			req.Target = test.path
		}
		if test.header != nil {
			req.Header = test.header
		}
		ends := 0
		resp := f.Send(t.Context(), context.Background(), context.Background(), req, toldOf(&Attempt{}, func() { ends++ }))
		says := resp.Bytes()
		if body, ok := resp.Body.(io.Reader); ok {
			if says, err = io.ReadAll(body); err != nil {
				t.Error(name, err)
			}
			resp.Close(0)
		}
		if resp.Status != test.code || !slices.Equal(upstream.sent, test.sent) || ends != 1 {
			t.Errorf("%s: %d after %q, ended %d times; want %d after %q", name, resp.Status, upstream.sent, ends, test.code, test.sent)
		}
		if test.code != http.StatusServiceUnavailable {
			if string(says) != test.says || resp.Source != exchange.FromUpstream {
				t.Errorf("%s: %q from %s, want %q", name, says, resp.Source, test.says)
			}
			continue
		}
		if !strings.Contains(string(says), test.says) || resp.Header.Get("Retry-After") != "1" || resp.Failure.Reason != metav1.StatusReasonServiceUnavailable {
			t.Errorf("%s: %q, Retry-After %q", name, says, resp.Header.Get("Retry-After"))
		}
	}
}
