package access

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// auditPolicy is the policy of the apiserver and of the proxy. It has each level and each stage.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  resources: [{group: "", resources: [nodes]}]
- level: Request
  resources: [{group: "", resources: [configmaps]}]
- level: RequestResponse
  resources: [{group: access.test, resources: [widgets]}]
- level: Metadata
`

// auditEvent is an event with all of its fields.
type auditEvent map[string]any

// eventsOf returns a request's events in a log so far.
func eventsOf(t *testing.T, path, id string) (all []auditEvent) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if !bytes.Contains(line, []byte(id)) {
			continue
		}
		var e auditEvent
		if json.Unmarshal(line, &e) == nil && e["auditID"] == id { // the last line may be incomplete
			all = append(all, e)
		}
	}
	return all
}

// comparable removes what differs between any two requests, and the proxy's own annotations.
func (e auditEvent) comparable(t *testing.T) {
	t.Helper()
	for _, name := range []string{"auditID", "requestReceivedTimestamp", "stageTimestamp"} {
		if text, _ := e[name].(string); text == "" {
			t.Errorf("%s is missing", name)
		}
		delete(e, name)
	}
	annotations, _ := e["annotations"].(map[string]any)
	maps.DeleteFunc(annotations, func(key string, _ any) bool {
		return strings.HasPrefix(key, "watchproxy.dev/") || strings.HasPrefix(key, "apiserver.latency.k8s.io/")
	})
	if len(annotations) == 0 {
		delete(e, "annotations")
	}
}

// and returns the fields of both events.
func (e auditEvent) and(other auditEvent) auditEvent {
	both := auditEvent{}
	maps.Copy(both, e)
	maps.Copy(both, other)
	return both
}

// audited is a request with the source that the proxy's log gives for the answer to a client who is
// allowed; "" if only the apiserver's log has the request.
type audited struct {
	request
	source string
}

// auditedRequests are of each kind that the cache answers, and some others.
func auditedRequests(since string) map[string]audited {
	const (
		pods, configs = "/api/v1/namespaces/" + teamA + "/pods", "/api/v1/namespaces/" + teamA + "/configmaps"
		widgets       = "/apis/access.test/v1/namespaces/" + teamA + "/widgets"
		discovery     = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
		table         = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	)
	return map[string]audited{
		"get":                    {request{target: pods + "/one?resourceVersion=0"}, "cache"},
		"get of nothing":         {request{target: pods + "/nothing?resourceVersion=0"}, "cache"},
		"list":                   {request{target: pods + "?resourceVersion=0"}, "cache"},
		"list of the newest":     {request{target: pods}, "cache"},
		"list of all namespaces": {request{target: "/api/v1/pods?resourceVersion=0"}, "cache"},
		"list by name":           {request{target: pods + "?resourceVersion=0&fieldSelector=metadata.name%3Done"}, "cache"},
		"list by label":          {request{target: pods + "?resourceVersion=0&labelSelector=app%3Dweb"}, "cache"},
		"list in protobuf":       {request{target: pods + "?resourceVersion=0", accept: protobuf}, "cache"},
		"list as a table":        {request{target: pods + "?resourceVersion=0", accept: table}, "cache"},
		"page":                   {request{target: pods + "?limit=1"}, "cache"},
		"watch":                  {request{target: pods + "?watch=1&timeoutSeconds=1&resourceVersion=" + since, watches: true}, "cache"},
		"watch with state":       {request{target: pods + "?watch=true&timeoutSeconds=1&resourceVersion=0", watches: true}, "cache"},
		"watch by name":          {request{target: pods + "?watch=1&timeoutSeconds=1&resourceVersion=0&fieldSelector=metadata.name%3Done", watches: true}, "cache"},
		"configmaps":             {request{target: configs + "?resourceVersion=0"}, "cache"},
		"deprecated":             {request{target: "/api/v1/namespaces/" + teamA + "/endpoints?resourceVersion=0"}, "cache"},
		"watch of widgets":       {request{target: widgets + "?watch=1&timeoutSeconds=1&resourceVersion=0", watches: true}, "cache"},
		"discovery":              {request{target: "/apis", accept: discovery}, "cache"},
		"widgets":                {request{target: widgets + "?resourceVersion=0"}, ""},
		"a widget":               {request{target: widgets + "/one?resourceVersion=0"}, ""},
		"version":                {request{target: "/version"}, ""},
		"parameters":             {request{target: pods + "?resourceVersion=x"}, ""},
		"write":                  {request{method: http.MethodPost, target: configs, body: `{"metadata":{"name":"x"}}`}, ""},
		"nodes":                  {request{target: "/api/v1/nodes?resourceVersion=0"}, ""}, // in neither log
	}
}

// auditedAnswers are the answers to two equal requests, with the requests' ids.
type auditedAnswers struct {
	want, got            answer
	direct, throughProxy string
	err                  error
}

// ask sends a request to the apiserver and through the proxy.
func (a *auditedAnswers) ask(ctx context.Context, w *world, f *front, c *caller, r request, what string) (err error) {
	var first, second request
	first, a.direct = r.named()
	second, a.throughProxy = r.named()
	second.protocol = cluster.DrawProtocol(c.name, what)
	if a.want, err = w.server.ask(ctx, c, first); err != nil {
		return err
	}
	a.got, err = f.ask(ctx, c, second)
	return err
}

// The proxy's audit log has the same events as the apiserver's log has for the same requests to the
// apiserver. Each request is in one of the two logs.
func TestAuditEvents(t *testing.T) {
	notWithSelf(t)
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, "--audit-policy-file="+policy)
	f := w.front(t, proxyUser, withAnonymous+"audit: {policyFile: "+policy+", logPath: "+log+"}\n")
	f.warm(t, w.callers["admin"], collections())
	since, err := w.newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	requests, sources := auditedRequests(since), map[string]int{}
	for _, name := range []string{
		"admin", "reader", "robot", "certificate", "anonymous", "nobody", "garbage", "expired certificate", "certified oddity",
		"token as reader", "token as all of it", "certificate as reader", "token as admin",
	} {
		c := w.callers[name]
		asked := map[string]*auditedAnswers{}
		var watches sync.WaitGroup
		for _, what := range slices.Sorted(maps.Keys(requests)) {
			r := requests[what]
			a := &auditedAnswers{}
			asked[what] = a
			if r.watches { // waits for the watch's end
				watches.Go(func() { a.err = a.ask(t.Context(), w, f, c, r.request, what) })
			} else {
				a.err = a.ask(t.Context(), w, f, c, r.request, what)
			}
		}
		watches.Wait()
		for _, what := range slices.Sorted(maps.Keys(requests)) {
			r := requests[what]
			a := asked[what]
			t.Run(name+"/"+what, func(t *testing.T) {
				if a.err != nil {
					t.Fatal(a.err)
				}
				if a.want.status != a.got.status && r.method == "" {
					t.Fatalf("%d instead of %d: %s", a.got.status, a.want.status, a.got.body)
				}
				if id := a.got.header.Get("Audit-Id"); id != a.throughProxy {
					t.Errorf("the answer has the Audit-Id %q instead of the client's", id)
				}
				w.compareEvents(t, log, a.direct, a.throughProxy, func(source string) {
					sources[source]++
					asAnother := what == "discovery" && strings.Contains(name, " as ") // is forwarded
					if a.want.status == ok && !asAnother && source != r.source && (what != "discovery" || source != "shared") {
						t.Errorf("the answer came from %q, want %q", source, r.source)
					}
				})
			})
		}
	}
	if sources["cache"] < len(sources) || sources["proxy"] == 0 || sources[""] == 0 {
		t.Errorf("the answers came from: %v", sources)
	}
	t.Logf("the answers came from: %v", sources)
}

// compareEvents compares the events of two equal requests, to the apiserver and through the proxy.
func (w *world) compareEvents(t *testing.T, log, direct, throughProxy string, from func(source string)) {
	t.Helper()
	var want, own, upstream []auditEvent
	complete := func(events []auditEvent) bool {
		return len(events) == 0 || events[len(events)-1]["stage"] == "ResponseComplete" || events[0]["stage"] == "ResponseStarted"
	}
	cluster.Eventually(t, "complete events", func() bool {
		want, upstream, own = eventsOf(t, w.audit.Path, direct), eventsOf(t, w.audit.Path, throughProxy), eventsOf(t, log, throughProxy)
		return complete(want) && complete(upstream) && complete(own) && len(upstream)+len(own) >= len(want)
	})
	if len(own) > 0 && len(upstream) > 0 {
		t.Errorf("both logs have the request:\n%v\n%v", own, upstream)
	}
	from(sourceOf(own))
	if len(own) == 0 {
		if len(upstream) != len(want) {
			t.Errorf("the apiserver logged %d events of the forwarded request, want %d", len(upstream), len(want))
		}
		return
	}
	for _, events := range [][]auditEvent{want, own} {
		for _, e := range events {
			e.comparable(t)
		}
	}
	for i := range max(len(want), len(own)) {
		var wanted, written auditEvent
		if i < len(want) {
			wanted = want[i]
		}
		if i < len(own) {
			written = own[i]
		}
		for _, field := range slices.Sorted(maps.Keys(wanted.and(written))) {
			if !reflect.DeepEqual(wanted[field], written[field]) {
				t.Errorf("event %d: %s is %v, want %v", i, field, written[field], wanted[field])
			}
		}
	}
}

// sourceOf returns the source in the last event.
func sourceOf(events []auditEvent) string {
	for _, e := range slices.Backward(events) {
		annotations, _ := e["annotations"].(map[string]any)
		source, _ := annotations["watchproxy.dev/source"].(string)
		return source
	}
	return ""
}
