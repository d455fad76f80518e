//go:build verify

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
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The cache serves the crowd that reconnects after a change of the definition.
func TestCrowdIsCached(t *testing.T) { reconnect(t, cache) }

// slowConversion defines a resource with the stored version v1 and another version v2. A webhook
// converts v1 to v2 and never responds. So each read of v2 lasts until the apiserver's timeout, and
// the apiserver's cache of v2 is never ready. The returned channel receives the webhook's calls.
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
	writeT(t, http.MethodPost, definitions, definition("Slow", "slows", "Namespaced", stored))
	const slows = "/apis/example.com/v1/namespaces/default/slows"
	await(t, get(slows), http.StatusOK)
	writeT(t, http.MethodPost, slows, `{"kind":"Slow","apiVersion":"example.com/v1","metadata":{"name":"one"}}`)
	patch := fmt.Sprintf(`{"spec":{"versions":[%s,%s],"conversion":{"strategy":"Webhook",
		"webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":%q,"caBundle":%q}}}}}`,
		stored, converted, webhook.URL, base64.StdEncoding.EncodeToString(ca))
	writeT(t, http.MethodPatch, definitions+"/slows.example.com", patch)
	unserved := get(strings.Replace(slows, "v1", "v2", 1) + "?resourceVersion=0")
	await(t, unserved, http.StatusTooManyRequests)
	return calls
}

// lasting sends a request that needs the conversion, and returns when the apiserver is working on
// the request.
func lasting(t *testing.T, r request, called <-chan struct{}) (end func()) {
	t.Helper()
	for len(called) > 0 {
		<-called
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		apiserver.Ask(ctx, r) // the request is expected to fail
	}()
	end = func() {
		cancel()
		<-ended
	}
	select {
	case <-called:
	case <-ended:
		t.Errorf("%s is answered without a conversion", r.Target)
	case <-time.After(cluster.Limit):
		end()
		t.Fatalf("the conversion for %s is not asked for", r.Target)
	}
	return end
}

// againByLot checks that a response's header and body have the same Retry-After. It then removes
// the value, because the apiserver chooses it at random.
func againByLot(r reply) (reply, error) {
	said, told := r.Header.Get("Retry-After"), gjson.GetBytes(r.Body, "details.retryAfterSeconds")
	if said == "" || said != told.Raw {
		return r, fmt.Errorf("%d %.300s: the header says to come again after %q seconds, the body after %q", r.Status, r.Body, said, told.Raw)
	}
	r.Header = r.Header.Clone()
	r.Header.Set("Retry-After", "N")
	r.Body = replaceAt(r.Body, told.Index, len(told.Raw), "N")
	return r, nil
}

// The apiserver refuses requests if it is not ready, too slow, or shutting down. The proxy passes
// these refusals on unchanged.
func TestRefusalsForAWhile(t *testing.T) {
	server := another(t, cluster.Options{
		Flags: []string{"--request-timeout=6s", "--shutdown-send-retry-after=true"},
		Grace: 10 * time.Second,
	})
	anotherProxy(t, server, server.Token, strings.Replace(settings, "syncTimeout: 2m", "syncTimeout: 1s", 1))
	if err := configMaps.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	called := slowConversion(t)
	const (
		slows   = "/apis/example.com/v2/namespaces/default/slows"
		configs = "/api/v1/namespaces/default/configmaps"
	)
	check(t, []row{
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
	row{name: "cached", request: get(configs + "?resourceVersion=0"), status: 200, from: cache, open: SomeState(0)}.run(t)

	defer lasting(t, get(slows+"?limit=1"), called)() // keeps the apiserver from shutting down
	stopped := make(chan error, 1)
	go func() { stopped <- server.Stop() }()
	if _, err := eventually(t.Context(), apiserver, get(configs), http.StatusTooManyRequests); err != nil {
		t.Error(err)
	}
	check(t, []row{
		{name: "ending, get", request: get(configs + "/one"), status: 429, from: upstream, says: "The apiserver is shutting down, please try again later."},
		{name: "ending, create", request: request{Method: "POST", Target: configs, Body: "{}"}, status: 429, from: upstream},
	})
	if got := must(t, proxied, get(configs+"?resourceVersion=0"), http.StatusOK); !bytes.Contains(got.Body, []byte("ConfigMapList")) {
		t.Errorf("%.200s", got.Body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// If a user's priority level has no free seats, the user gets 429, both directly and through the
// proxy. Responses from the proxy's cache need no seat. The more requests a second has, the longer is
// the Retry-After of the next, so these rows are moving.
func TestTooManyRequests(t *testing.T) {
	const token = "limited-token"
	server := another(t, cluster.Options{Users: token + ",limited,limited-uid\n"})
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
		writeT(t, http.MethodPost, o.path, o.body)
	}
	called := slowConversion(t)
	anotherProxy(t, server, token, settings)
	if err := configMaps.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	const slow, configs = "/apis/example.com/v2/namespaces/default/slows/one", "/api/v1/namespaces/default/configmaps"
	must(t, proxied, get(configs+"/one?resourceVersion=0"), http.StatusNotFound) // the proxy learns that it may get
	defer lasting(t, get(slow), called)()
	await(t, get(configs+"/one"), http.StatusTooManyRequests)
	check(t, []row{
		{name: "get", request: get(configs + "/one"), status: 429, from: upstream, says: "Too many requests, please try again later.", moving: true},
		{name: "create", request: request{Method: "POST", Target: configs, Body: `{}`}, status: 429, from: upstream, moving: true},
		{name: "list", request: get(configs), status: 200, from: cache, open: SomeState(0)},
		{name: "old list", request: get(configs + "?resourceVersion=0"), status: 200, from: cache, open: SomeState(0)},
	})
	if got := must(t, proxied, get(configs+"/one?resourceVersion=0"), http.StatusNotFound); !bytes.Contains(got.Body, []byte("NotFound")) {
		t.Errorf("%.200s", got.Body)
	}
}
