package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// The keys of annotations. The first four are the apiserver's keys.
const (
	decisionKey       = "authorization.k8s.io/decision"
	reasonKey         = "authorization.k8s.io/reason"
	deprecatedKey     = "k8s.io/deprecated"
	removedKey        = "k8s.io/removed-release"
	sourceKey         = "watchproxy.dev/source"
	authenticationKey = "watchproxy.dev/authentication"
)

// deprecation matches the apiserver's warning about a deprecated version.
var deprecation = regexp.MustCompile(
	` is deprecated in v[0-9]+\.[0-9]+\+(?:, unavailable in v([0-9]+\.[0-9]+)\+)?`)

// Auditor writes the events of requests that upstream does not receive.
type Auditor struct {
	policy   audit.PolicyRuleEvaluator
	bodies   bool      // the policy may want the bodies of responses
	strict   bool      // a request fails if its events cannot be written
	stranger user.Info // the user of all requests if the proxy does not authenticate, else nil
	backend  audit.Backend
	file     io.Closer
}

// New reads the policy and opens the log. Close closes the log.
func New(o Options) (*Auditor, error) {
	rules, err := policy.LoadPolicyFromFile(o.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("policyFile: %w", err)
	}
	out, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("logPath: %w", err)
	}
	a := &Auditor{
		policy: policy.NewPolicyRuleEvaluator(rules), strict: o.Strict, file: out,
		backend: auditlog.NewBackend(out, auditlog.FormatJson, auditv1.SchemeGroupVersion),
		bodies: slices.ContainsFunc(rules.Rules,
			func(r auditapi.PolicyRule) bool { return r.Level == auditapi.LevelRequestResponse }),
	}
	if o.Unauthenticated {
		a.stranger = &user.DefaultInfo{
			Name: user.Anonymous, Groups: []string{user.AllUnauthenticated},
		}
	}
	return a, nil
}

// Close closes the log. No events may follow.
func (a *Auditor) Close() error { return a.file.Close() }

// Begin adds a missing Audit-Id, so that upstream's events and responses have the same ID.
func (*Auditor) Begin(req *exchange.Request) {
	if req.Header.Get(auditapi.HeaderAuditID) == "" {
		req.Header[http.CanonicalHeaderKey(auditapi.HeaderAuditID)] = []string{req.AuditID()}
	}
}

// WantsBody reports whether the policy wants the body of the response to a request. If so, the
// apiserver must answer. The request must have been authenticated.
func (a *Auditor) WantsBody(req *exchange.Request) bool {
	if a == nil || !a.bodies {
		return false
	}
	_, attributes := a.read(req)
	return attributes.GetVerb() != "watch" &&
		a.policy.EvaluatePolicyRule(attributes).Level == auditapi.LevelRequestResponse
}

// Answered writes the events of an answered request that upstream has not seen. If the auditor is
// strict and they cannot be written, it returns an error response instead.
func (a *Auditor) Answered(
	req *exchange.Request, resp *exchange.Response, received time.Time, panicked bool,
) *exchange.Response {
	if resp.Source == exchange.FromUpstream && !resp.Unseen {
		return resp
	}
	if resp.Header.Get(auditapi.HeaderAuditID) == "" {
		resp.Header.Set(auditapi.HeaderAuditID, req.AuditID())
	}
	e := a.event(req, received)
	if e == nil || e.write(resp, panicked) || !a.strict {
		return resp
	}
	audit.ApiserverAuditDroppedCounter.Inc()
	resp.Abandon()
	status := exchange.Failure(http.StatusInternalServerError, metav1.StatusReasonInternalError,
		"Internal error occurred: failed to store audit event")
	failure := req.Refuse(status)
	failure.Last = resp.Last
	return failure
}

type event struct {
	*audit.AuditContext
	ctx     context.Context //nolint:containedctx // the library keeps the event in it
	auditor *Auditor
	req     *exchange.Request
	lasts   bool // the apiserver sets no time limit for the request
	// late are annotations that the apiserver adds after its response: keys, each before its value.
	late []string
}

func (a *Auditor) event(req *exchange.Request, received time.Time) *event {
	if a.unknown(req) {
		req = shortened(req)
	}
	sent, attributes := a.read(req)
	config := a.policy.EvaluatePolicyRule(attributes)
	audit.ObservePolicyLevel(sent.Context(), config.Level)
	if config.Level == auditapi.LevelNone {
		return nil
	}
	ctx := audit.WithAuditContext(context.Background())
	e := &event{AuditContext: audit.AuditContextFrom(ctx), ctx: ctx, auditor: a, req: req}
	if err := e.Init(config, a.backend); err != nil {
		panic("BUG: " + err.Error())
	}
	audit.WithAuditID(ctx, types.UID(req.AuditID()))
	if req.Route.View != nil {
		prefix := exchange.ViewPrefix + req.Route.View.Name
		if sent.URL.Path = prefix + sent.URL.Path; sent.URL.RawPath != "" {
			sent.URL.RawPath = prefix + sent.URL.RawPath
		}
	}
	audit.LogRequestMetadata(ctx, sent, received, attributes)
	e.lasts = lasting(attributes)
	return e
}

// lasting reports whether the apiserver writes the stage ResponseStarted of a request.
func lasting(a authorizer.Attributes) bool {
	switch a.GetSubresource() {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return a.GetVerb() == "watch" || a.GetVerb() == "proxy"
}

func (a *Auditor) unknown(req *exchange.Request) bool {
	return req.Identity == nil && a.stranger == nil
}

// textMost limits each text that an unknown client adds to an event, in bytes.
const textMost = 512

// shortened returns what the log has of an unknown client's request: the beginnings of its method
// and target, and its short headers. Over HTTP/2, one byte may refer to kilobytes of them.
func shortened(req *exchange.Request) *exchange.Request {
	short := *req
	short.Method = req.Method[:min(len(req.Method), textMost)]
	short.Target = req.Target[:min(len(req.Target), textMost)]
	short.SplitTarget()
	short.Query = req.Query[max(0, len(req.Query)-textMost):] // client-go sends watch last
	short.Header = http.Header{}
	for _, name := range []string{"Audit-Id", "User-Agent", "X-Forwarded-For", "X-Real-Ip"} {
		if value := req.Header.Get(name); len(value) <= textMost {
			short.Header.Set(name, value)
		}
	}
	return &short
}

// read returns a request as the apiserver audits it. Its user is the sender, also of impersonation.
func (a *Auditor) read(req *exchange.Request) (*http.Request, authorizer.Attributes) {
	sent := req.AsHTTP(context.Background())
	parsed := sent
	if a.unknown(req) { // its selectors would be expensive
		parsed = &http.Request{Method: sent.Method, URL: &url.URL{Path: sent.URL.Path}}
	}
	// After an error, info has the part that could be parsed.
	info, _ := access.RequestInfos.NewRequestInfo(parsed)
	if parsed != sent && info.IsResourceRequest && info.Verb == "list" {
		addQuery(info, req.Query)
	}
	ctx := request.WithRequestInfo(sent.Context(), info)
	switch {
	case req.Identity != nil:
		ctx = request.WithUser(ctx, req.Identity.User)
	case a.stranger != nil:
		ctx = request.WithUser(ctx, a.stranger)
	}
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		panic("BUG: " + err.Error()) // the context always has the RequestInfo
	}
	return sent, attributes
}

// addQuery adds to a list what its query says, as RequestInfo does: whether it is a watch, and of
// which object. A selector of several fields is not parsed.
func addQuery(info *request.RequestInfo, query string) {
	if exchange.IsWatch(query) {
		info.Verb = "watch"
	}
	selector, _ := wire.Parameter(query, "fieldSelector")
	name, ok := strings.CutPrefix(selector, "metadata.name=")
	if ok && !strings.ContainsAny(name, `=,\`) && len(content.IsPathSegmentName(name)) == 0 {
		info.Name = name
	}
}

// write writes the stages, the last one of an open watch at its end. It returns false if one fails.
func (e *event) write(resp *exchange.Response, panicked bool) bool {
	rejected := e.auditor.unknown(e.req) && resp.Status == http.StatusUnauthorized
	if !rejected && !e.ProcessEventStage(e.ctx, auditapi.StageRequestReceived) {
		return false
	}
	e.describe(resp)
	if (e.lasts || rejected) && !e.ProcessEventStage(e.ctx, auditapi.StageResponseStarted) {
		return false
	}
	switch w, ok := resp.Body.(*watch.Watch); {
	case rejected: // the apiserver writes no further stage
		return true
	case panicked:
		return e.ProcessEventStage(e.ctx, auditapi.StagePanic)
	case ok:
		e.req = nil // an open watch does not need the request
		w.Audit = e
		return true
	}
	return e.complete()
}

func (e *event) WatchEnded() { e.complete() }

func (e *event) complete() bool {
	audit.AddAuditAnnotations(e.ctx, e.late...)
	return e.ProcessEventStage(e.ctx, auditapi.StageResponseComplete)
}

func (e *event) describe(resp *exchange.Response) {
	if caller := e.req.Identity; caller != nil && caller.Decided.User != nil {
		decided := &caller.Decided
		if e.req.Impersonates() {
			audit.LogImpersonatedUser(e.ctx, decided.User, "")
		}
		decision := "forbid"
		if decided.Allowed {
			decision = "allow"
		}
		audit.AddAuditAnnotations(e.ctx, decisionKey, decision, reasonKey, decided.Reason)
	}
	source := string(resp.Source)
	if resp.Source == exchange.FromUpstream {
		source = "shared"
	}
	audit.AddAuditAnnotation(e.ctx, sourceKey, source)
	for _, warning := range resp.Header["Warning"] {
		if found := deprecation.FindStringSubmatch(warning); found != nil {
			e.late = []string{deprecatedKey, "true"}
			if found[1] != "" {
				e.late = append(e.late, removedKey, found[1])
			}
		}
	}
	if e.auditor.stranger != nil {
		audit.AddAuditAnnotation(e.ctx, authenticationKey, "none")
	}
	if resp.Failure == nil {
		e.SetEventResponseStatusCode(int32(resp.Status)) //nolint:gosec // a status has three digits
		return
	}
	body, err := json.Marshal(resp.Failure)
	if err != nil {
		panic("BUG: status: " + err.Error())
	}
	e.LogResponseObject(resp.Failure,
		&runtime.Unknown{Raw: body, ContentType: runtime.ContentTypeJSON})
}
