package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// slowConversion defines a resource of which v1 is stored, and v2 is converted to by a webhook that never answers. So a
// read of v2 goes on until the apiserver loses patience, and its cache of v2 is never there. It returns a channel that
// tells of calls to the webhook.
func slowConversion(t *testing.T) (called <-chan struct{}) {
	t.Helper()
	calls, over := make(chan struct{}, 1), make(chan struct{})
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case calls <- struct{}{}:
		default:
		}
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}))
	t.Cleanup(func() {
		close(over)
		webhook.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	stored, converted := version("v1", true, ""), version("v2", false, "")
	if _, err := write(t.Context(), http.MethodPost, definitions, definition("Slow", "slows", "Namespaced", stored)); err != nil {
		t.Fatal(err)
	}
	const slows = "/apis/example.com/v1/namespaces/default/slows"
	if err := eventually(t.Context(), apiserver, get(slows), http.StatusOK); err != nil {
		t.Fatal(err)
	}
	if _, err := write(t.Context(), http.MethodPost, slows, `{"kind":"Slow","apiVersion":"example.com/v1","metadata":{"name":"one"}}`); err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"spec":{"versions":[%s,%s],"conversion":{"strategy":"Webhook",
		"webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":%q,"caBundle":%q}}}}}`,
		stored, converted, webhook.URL, base64.StdEncoding.EncodeToString(ca))
	if _, err := write(t.Context(), http.MethodPatch, definitions+"/slows.example.com", patch); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), streamLimit)
	defer cancel()
	unserved := get(strings.Replace(slows, "v1", "v2", 1) + "?resourceVersion=0")
	if err := eventually(ctx, apiserver, unserved, http.StatusTooManyRequests); err != nil {
		t.Fatal(err)
	}
	return calls
}

// lasting sends a request for what is converted, and returns when the apiserver is at work on it.
func lasting(t *testing.T, r request, called <-chan struct{}) (end func()) {
	t.Helper()
	for len(called) > 0 {
		<-called
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		apiserver.send(ctx, r) // it is not meant to succeed
	}()
	<-called
	return func() {
		cancel()
		<-ended
	}
}

// againByLot checks that an answer's header and body agree on when to come again, which the apiserver draws lots about,
// and leaves that open.
func againByLot(r reply) (reply, error) {
	said, told := r.header.Get("Retry-After"), gjson.GetBytes(r.body, "details.retryAfterSeconds")
	if said == "" || said != told.Raw {
		return r, fmt.Errorf("%d %.300s: the header says to come again after %q seconds, the body after %q", r.status, r.body, said, told.Raw)
	}
	r.header = r.header.Clone()
	r.header.Set("Retry-After", "N")
	r.body = replaceAt(r.body, told.Index, len(told.Raw), "N")
	return r, nil
}

// What the apiserver refuses because it is not ready, too slow, or about to end, comes through as it is.
func TestRefusalsForAWhile(t *testing.T) {
	server := another(t, cluster.Options{
		Flags: []string{"--request-timeout=6s", "--shutdown-send-retry-after=true"},
		Grace: 10 * time.Second,
	})
	anotherProxy(t, server, server.Token, "cache: {syncTimeout: 1s}\n")
	called := slowConversion(t)
	const (
		slows   = "/apis/example.com/v2/namespaces/default/slows"
		configs = "/api/v1/namespaces/default/configmaps"
	)
	checkTogether(t, []row{
		{name: "too slow, get", request: get(slows + "/one"), status: 504, from: upstream, says: "Timeout: request did not complete within the allotted timeout"},
		{name: "too slow, page", request: get(slows + "?limit=1"), status: 504, from: upstream},
	})
	for _, target := range []string{
		"?resourceVersion=0", "", "?resourceVersion=1", "?watch=true&resourceVersion=0", "?watch=true",
		"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
	} {
		t.Run("not initialized, "+target, func(t *testing.T) {
			r := row{request: get(slows + target), status: http.StatusTooManyRequests, says: "storage is (re)initializing"}
			want, got, err := r.ask(t.Context())
			if err == nil {
				want, err = againByLot(want)
			}
			if err == nil {
				got, err = againByLot(got)
			}
			if err == nil {
				err = r.judge(want, got)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	row{name: "cached", request: get(configs + "?resourceVersion=0"), status: 200, from: cache, open: someState(0)}.run(t)

	defer lasting(t, get(slows+"?limit=1"), called)() // keeps the apiserver from ending
	stopped := make(chan error, 1)
	go func() { stopped <- server.Stop() }()
	if err := eventually(t.Context(), apiserver, get(configs), http.StatusTooManyRequests); err != nil {
		t.Error(err)
	}
	check(t, []row{
		{name: "ending, get", request: get(configs + "/one"), status: 429, from: upstream, says: "The apiserver is shutting down, please try again later."},
		{name: "ending, create", request: request{method: "POST", target: configs, body: "{}"}, status: 429, from: upstream},
	})
	if got := proxied.must(t, get(configs+"?resourceVersion=0"), http.StatusOK); !bytes.Contains(got.body, []byte("ConfigMapList")) {
		t.Errorf("%.200s", got.body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A user whose priority level has no seat left hears so, whether it asks directly or through the proxy. What
// the cache answers takes no place.
func TestTooManyRequests(t *testing.T) {
	const token = "limited-token"
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+",limited,limited-uid\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := another(t, cluster.Options{TokenFile: tokens})
	const flow = "/apis/flowcontrol.apiserver.k8s.io/v1/"
	for _, o := range []struct{ path, body string }{
		{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"limited"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"limited"}]}`},
		{flow + "prioritylevelconfigurations", `{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"PriorityLevelConfiguration","metadata":{"name":"none"},
			"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"lendablePercent":0,"borrowingLimitPercent":0,"limitResponse":{"type":"Reject"}}}}`},
		{flow + "flowschemas", `{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":"none"},
			"spec":{"matchingPrecedence":2,"priorityLevelConfiguration":{"name":"none"},"rules":[{"subjects":[{"kind":"User","user":{"name":"limited"}}],
			"resourceRules":[{"verbs":["get","create"],"apiGroups":["*"],"resources":["configmaps","slows"],"namespaces":["*"]}]}]}}`},
	} {
		if _, err := write(t.Context(), http.MethodPost, o.path, o.body); err != nil {
			t.Fatal(err)
		}
	}
	called := slowConversion(t)
	anotherProxy(t, server, token, "")
	const slow, configs = "/apis/example.com/v2/namespaces/default/slows/one", "/api/v1/namespaces/default/configmaps"
	defer lasting(t, get(slow), called)()
	if err := eventually(t.Context(), apiserver, get(configs+"/one"), http.StatusTooManyRequests); err != nil {
		t.Fatal(err)
	}
	check(t, []row{
		{name: "get", request: get(configs + "/one"), status: 429, from: upstream, says: "Too many requests, please try again later."},
		{name: "create", request: request{method: "POST", target: configs, body: `{}`}, status: 429, from: upstream},
		{name: "list", request: get(configs), status: 200, from: cache, open: someState(0)},
		{name: "old list", request: get(configs + "?resourceVersion=0"), status: 200, from: cache, open: someState(0)},
	})
	if got := proxied.must(t, get(configs+"/one?resourceVersion=0"), http.StatusNotFound); !bytes.Contains(got.body, []byte("NotFound")) {
		t.Errorf("%.200s", got.body)
	}
}
