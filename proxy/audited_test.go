package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
)

// auditing returns an auditor with rules, and the path of its log.
func auditing(t *testing.T, rules string, unauthenticated bool) (a *audit.Auditor, log string) {
	t.Helper()
	policy, log := filepath.Join(t.TempDir(), "policy.yaml"), filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n"+rules), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := audit.New(audit.Options{PolicyFile: policy, LogPath: log, Unauthenticated: unauthenticated})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, log
}

// eventsIn returns the events of a log.
func eventsIn(t *testing.T, log string) (all []auditv1.Event) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// A request has the same Audit-Id upstream and in the response: the client's, or a new one. The log
// has the requests that upstream does not receive. If the policy wants bodies, upstream receives
// the request.
func TestAuditIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		auditor, log := auditing(t, "- level: RequestResponse\n  verbs: [get]\n- level: Metadata\n", true)
		seen := make(chan string, 1)
		options := testOptions()
		options.Audit = auditor
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
			seen <- r.Header.Get("Audit-Id")
			w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		}, options)
		client := clientTo(t, address, "h2")
		const path = "/api/v1/namespaces/a/configmaps"
		for _, own := range [][]string{nil, {"Audit-Id", "mine"}} {
			for target, test := range map[string]struct {
				forwarded bool
				stages    int
			}{
				path + "?resourceVersion=0":                            {false, 2},
				path + "?watch=1&resourceVersion=0&timeoutSeconds=1":   {false, 3},
				path + "/c-000000?resourceVersion=0":                   {true, 0}, // its body is wanted
				path + "?resourceVersion=0&fieldSelector=metadata.x=1": {true, 0},
				"/version": {true, 0},
			} {
				before := len(eventsIn(t, log))
				resp, _ := client.get(t, target, own...)
				id := resp.Header.Get("Audit-Id")
				if id == "" || own != nil && id != own[1] {
					t.Errorf("%s: Audit-Id %q", target, id)
				}
				select {
				case upstream := <-seen:
					if !test.forwarded || upstream != id {
						t.Errorf("%s: upstream got the Audit-Id %q, want %q only if forwarded: %t", target, upstream, id, test.forwarded)
					}
				default:
					if test.forwarded {
						t.Errorf("%s was not forwarded", target)
					}
				}
				synctest.Wait() // the end of a watch is in the log
				events := eventsIn(t, log)[before:]
				if len(events) != test.stages {
					t.Errorf("%s: %d events, want %d", target, len(events), test.stages)
				}
				for _, e := range events {
					if string(e.AuditID) != id {
						t.Errorf("%s: the log has the Audit-Id %q, want %q", target, e.AuditID, id)
					}
				}
			}
		}
	})
}

// The log has the address of a view as the client sent it, and the resource of the request. A view
// also cuts the answers that upstream gives because the policy wants their bodies.
func TestAuditOfViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		auditor, log := auditing(t, "- level: RequestResponse\n  verbs: [get]\n- level: Metadata\n  omitStages: [RequestReceived]\n", true)
		options := testOptions()
		options.Audit = auditor
		options.Views = map[string]*exchange.View{"slim": {Name: "slim", Fields: projection.Keep(nil)}}
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"ConfigMap","metadata":{"name":"c","x":1},"data":{}}`)
		}, options)
		client := clientTo(t, address, "h2")
		const maps = "/views/slim/api/v1/namespaces/a/configmaps"
		if _, body := client.get(t, maps+"/c?resourceVersion=0", "Accept", "application/json"); body != `{"kind":"ConfigMap","metadata":{"name":"c"}}` {
			t.Errorf("upstream's answer: %s", body)
		}
		client.get(t, maps+"?resourceVersion=0", "Accept", "application/json")
		synctest.Wait()
		events := eventsIn(t, log)
		if len(events) != 1 || events[0].RequestURI != maps+"?resourceVersion=0" || events[0].ObjectRef.Resource != "configmaps" || events[0].Verb != "list" {
			t.Errorf("the log has %+v", events)
		}
	})
}
