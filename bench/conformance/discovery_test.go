package conformance

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	aggregated    = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	kubectlAsks   = aggregated + ",application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
	openAPI2Proto = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	openAPI3Proto = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
	openAPI3Path  = "/openapi/v3/apis/apps/v1"
)

// documentForms are the Accept headers of discovery and OpenAPI.
var documentForms = []string{
	"", "*/*", "application/json", "application/json, */*", "application/json;q=0.9,application/vnd.kubernetes.protobuf", "text/html",
	kubectlAsks, aggregated, aggregated + ";profile=nopeer", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
	strings.Replace(aggregated, "json", "yaml", 1), strings.Replace(aggregated, "json", "vnd.kubernetes.protobuf", 1), aggregated + ";pretty=1",
	openAPI2Proto, strings.Replace(openAPI2Proto, "@", ".", 1), openAPI3Proto, strings.Replace(openAPI3Proto, "@", ".", 1),
}

// asForm adds the headers of a form.
func asForm(r request, accept string, gzip bool) request {
	if accept != "" {
		r = r.With("Accept", accept)
	}
	if gzip {
		r = r.With("Accept-Encoding", "gzip")
	}
	return r
}

// hashed returns the target for a document in upstream's index.
func hashed(t *testing.T, path string) string {
	t.Helper()
	index := must(t, apiserver, get("/openapi/v3"), http.StatusOK)
	target := gjson.GetBytes(index.Body, "paths."+strings.NewReplacer(".", `\.`).Replace(strings.TrimPrefix(path, "/openapi/v3/"))+".serverRelativeURL").Str
	if !strings.HasPrefix(target, path+"?hash=") {
		t.Fatalf("the index has no %s but %q", path, target)
	}
	return target
}

// Discovery and OpenAPI are the same through the proxy in every form. Documents with an ETag come
// from a copy, unless the request is unusual.
func TestDiscovery(t *testing.T) {
	current := hashed(t, openAPI3Path)
	for _, targets := range []struct {
		from source
		all  []string
	}{
		{cache, []string{
			"/api", "/apis", "/apis?timeout=32s", "/openapi/v2", "/openapi/v3", openAPI3Path, current, current + "&timeout=32s",
			openAPI3Path + "?hash=0123456789ABCDEF", "/openapi/v3/apis/no.such.group/v1", "/openapi/v3/.well-known/openid-configuration",
		}},
		{upstream, []string{
			"/api/v1", "/apis/apps", "/apis/apps/v1", "/apis/no.such.group", "/apis/example.com/v1", "/version", "/apis/", "/apis?x=1",
			"/apis?timeout=x", "/openapi/v2?timeout=0", "/openapi/v2/", openAPI3Path + "?hash=", openAPI3Path + "/", "/openapi/v3/apis%2Fapps/v1",
		}},
	} {
		for _, target := range targets.all {
			t.Run(strings.ReplaceAll(target[:min(len(target), 60)], "/", "|"), func(t *testing.T) {
				for _, accept := range documentForms {
					for _, gzip := range []bool{false, true} {
						if !*allForms && cluster.Draw(4, target, accept, strconv.FormatBool(gzip)) != 0 {
							continue
						}
						sameDocument(t, asForm(get(target), accept, gzip), targets.from)
					}
				}
				row{request: request{Method: http.MethodHead, Target: target}, status: apiserver.AskT(t, request{Method: http.MethodHead, Target: target}).Status, from: upstream}.check(t)
			})
		}
	}
}

// sameDocument compares a document, without a condition and with conditions. from is the expected
// source if upstream sends the document with an ETag.
func sameDocument(t *testing.T, r request, from source) {
	t.Helper()
	want := apiserver.AskT(t, r)
	proxied.AskT(t, r) // the proxy has a copy now
	tag := want.Header.Get("Etag")
	if want.Status != http.StatusOK || tag == "" {
		from = upstream
	}
	row{request: r, status: want.Status, from: from, moving: true}.check(t)
	if tag == "" {
		return
	}
	for condition, from := range map[string]source{tag: from, `"other"`: from, "W/" + tag: upstream, `"other", ` + tag: upstream, "*": upstream} {
		conditional := r.With("If-None-Match", condition)
		row{request: conditional, status: apiserver.AskT(t, conditional).Status, from: from, moving: true}.check(t)
	}
}

// A copy of a document with a hash expires when upstream's own response does.
func TestDiscoveryExpires(t *testing.T) {
	r := get(hashed(t, openAPI3Path))
	proxied.AskT(t, r)
	time.Sleep(2 * time.Second)
	var expires [2]time.Time
	for i, e := range []*cluster.Endpoint{apiserver, proxied} {
		var err error
		if expires[i], err = time.Parse(time.RFC1123, e.AskT(t, r).Header.Get("Expires")); err != nil {
			t.Fatal(err)
		}
	}
	if apart := expires[1].Sub(expires[0]).Abs(); apart > time.Second {
		t.Errorf("expires at %v instead of %v", expires[1], expires[0])
	}
}

// As soon as upstream shows a new resource, the proxy also shows it, however many clients ask.
func TestDiscoveryIsNeverStale(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	defer crowd.Wait()
	defer cancel()
	documents := []request{
		get("/apis").With("Accept", kubectlAsks), get("/openapi/v2").With("Accept-Encoding", "gzip"), get("/openapi/v3/apis/example.com/v1"), get("/apis/example.com/v1"),
	}
	for _, r := range documents {
		for range 2 {
			crowd.Go(func() {
				for ctx.Err() == nil {
					_, _ = proxied.Ask(ctx, r)
				}
			})
		}
	}
	const times = 20
	for range times {
		g := newGadgets(t, version("v1", true, ""))
		for _, r := range documents {
			g.shown(r)
		}
		g.explained()
	}
}

// explained reads the document that the index names, as in kubectl explain. For some time the index
// is older than the document, and upstream then redirects the client.
func (g *gadgets) explained() {
	g.t.Helper()
	target := hashed(g.t, "/openapi/v3/apis/example.com/v1")
	for {
		got := proxied.AskT(g.t, get(target))
		if got.Status == http.StatusMovedPermanently {
			target = got.Header.Get("Location")
			continue
		}
		if got.Status != http.StatusOK || !bytes.Contains(got.Body, []byte(g.resource)) {
			g.t.Errorf("%d, and the document has no %s", got.Status, g.resource)
		}
		return
	}
}

// shown waits until upstream shows the resource in a document. From then on the proxy must show it.
func (g *gadgets) shown(r request) {
	g.t.Helper()
	shows := func(e *cluster.Endpoint) (bool, []byte) {
		body, err := opened(must(g.t, e, r, http.StatusOK), same)
		if err != nil {
			g.t.Fatal(err)
		}
		return bytes.Contains(body, []byte(g.resource)), body
	}
	for end := time.Now().Add(2 * streamLimit); ; {
		if is, _ := shows(apiserver); is {
			break
		}
		if time.Now().After(end) {
			g.t.Fatalf("upstream does not show %s in %s", g.resource, r.Target)
		}
		cluster.Pause(g.t.Context(), time.Millisecond)
	}
	if is, _ := shows(proxied); !is {
		g.t.Errorf("%s has no %s", r.Target, g.resource)
	}
}
