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

// eventsIn returns the events in a log after an offset, by request.
func eventsIn(t *testing.T, path string, offset int) map[string][]auditEvent {
	t.Helper()
	text, err := os.ReadFile(path)
	cluster.MustT(t, err)
	all := map[string][]auditEvent{}
	for line := range bytes.Lines(text[min(offset, len(text)):]) {
		var e auditEvent
		if json.Unmarshal(line, &e) == nil { // the last line may be incomplete
			id, _ := e["auditID"].(string)
			all[id] = append(all[id], e)
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
		"discovery":              {request{target: "/apis", accept: discovery}, ""},
		"widgets":                {request{target: widgets + "?resourceVersion=0"}, ""},
		"a widget":               {request{target: widgets + "/one?resourceVersion=0"}, ""},
		"version":                {request{target: "/version"}, ""},
		"parameters":             {request{target: pods + "?resourceVersion=x"}, ""},
		"write":                  {request{method: http.MethodPost, target: configs + "?dryRun=All", body: `{"metadata":{"name":"x"}}`}, ""},
		"nodes":                  {request{target: "/api/v1/nodes?resourceVersion=0"}, ""}, // in neither log
	}
}

// auditedAnswers are the answers to two equal requests, with the requests' ids.
type auditedAnswers struct {
	audited
	name                 string // of the subtest
	caller               *caller
	want, got            answer
	direct, throughProxy string
	err                  error
}

// ask sends a request to the apiserver and through the proxy.
func (a *auditedAnswers) ask(ctx context.Context, w *world, f *front) {
	var first, second request
	first, a.direct = a.named()
	second, a.throughProxy = a.named()
	second.protocol = cluster.DrawProtocol(a.name)
	if a.want, a.err = w.server.ask(ctx, a.caller, first); a.err == nil {
		a.got, a.err = f.ask(ctx, a.caller, second)
	}
}

// auditedEvents are the events in the apiserver's log and in the proxy's, by request.
type auditedEvents struct{ upstream, own map[string][]auditEvent }

// complete reports whether all events of the two requests have been written.
func (e auditedEvents) complete(a *auditedAnswers) bool {
	want, upstream, own := e.upstream[a.direct], e.upstream[a.throughProxy], e.own[a.throughProxy]
	for _, events := range [][]auditEvent{want, upstream, own} {
		if n := len(events); n > 0 && events[n-1]["stage"] != "ResponseComplete" && events[0]["stage"] != "ResponseStarted" {
			return false
		}
	}
	return len(upstream)+len(own) >= len(want)
}

// The proxy's audit log has the same events as the apiserver's log has for the same requests to the
// apiserver. Each request is in one of the two logs.
func TestAuditEvents(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	log := filepath.Join(t.TempDir(), "audit.log")
	// On a busy machine the apiserver may be faster than a proof.
	f := w.front(t, proxyUser, withAnonymous+"audit: {policyFile: "+w.policy+", logPath: "+log+"}\n")
	f.warm(t, w.callers["admin"], collections())
	since, err := w.newest(t.Context())
	cluster.MustT(t, err)
	earlier, err := os.Stat(w.audit.Path)
	cluster.MustT(t, err)
	var asked []*auditedAnswers
	var watches sync.WaitGroup
	for _, name := range []string{
		"admin", "reader", "robot", "certificate", "anonymous", "nobody", "garbage", "expired certificate", "certified oddity",
		"token as reader", "token as all of it", "certificate as reader", "token as admin",
	} {
		requests := auditedRequests(since)
		for _, what := range slices.Sorted(maps.Keys(requests)) {
			r := requests[what]
			a := &auditedAnswers{audited: r, name: name + "/" + what, caller: w.callers[name]}
			asked = append(asked, a)
			if r.watches { // waits for the watch's end
				watches.Go(func() { a.ask(t.Context(), w, f) })
			} else {
				a.ask(t.Context(), w, f)
			}
		}
	}
	watches.Wait()
	var events auditedEvents
	cluster.Eventually(t, "complete events", func() bool {
		events = auditedEvents{eventsIn(t, w.audit.Path, int(earlier.Size())), eventsIn(t, log, 0)}
		return !slices.ContainsFunc(asked, func(a *auditedAnswers) bool { return a.err == nil && !events.complete(a) })
	})
	sources, checked := map[string]int{}, 0
	for _, a := range asked {
		t.Run(a.name, func(t *testing.T) {
			checked++
			sources[a.check(t, events)]++
		})
	}
	if checked == len(asked) && (sources["cache"] < len(sources) || sources["proxy"] == 0 || sources[""] == 0) {
		t.Errorf("the answers came from: %v", sources)
	}
	t.Logf("the answers came from: %v", sources)
}

// check compares the answers, and the events of the two requests. It returns the source of the
// proxy's answer.
func (a *auditedAnswers) check(t *testing.T, events auditedEvents) (source string) {
	t.Helper()
	if a.err != nil {
		t.Fatal(a.err)
	}
	if a.want.status != a.got.status {
		t.Fatalf("%d instead of %d: %s", a.got.status, a.want.status, a.got.body)
	}
	if id := a.got.header.Get("Audit-Id"); id != a.throughProxy {
		t.Errorf("the answer has the Audit-Id %q instead of the client's", id)
	}
	want, upstream, own := events.upstream[a.direct], events.upstream[a.throughProxy], events.own[a.throughProxy]
	if len(own) > 0 && len(upstream) > 0 {
		t.Errorf("both logs have the request:\n%v\n%v", own, upstream)
	}
	source = sourceOf(own)
	if a.want.status == ok && source != a.source {
		t.Errorf("the answer came from %q, want %q", source, a.source)
	}
	if len(own) == 0 {
		if len(upstream) != len(want) {
			t.Errorf("the apiserver logged %d events of the forwarded request, want %d", len(upstream), len(want))
		}
		return source
	}
	for _, e := range slices.Concat(want, own) {
		e.comparable(t)
	}
	if !reflect.DeepEqual(want, own) {
		t.Errorf("the events are\n%v\ninstead of\n%v", own, want)
	}
	return source
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
