package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	aggregated    = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	kubectlAsks   = aggregated + ",application/json"
	openAPI2Proto = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	openAPI3Proto = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
	openAPI3Path  = "/openapi/v3/apis/apps/v1"
)

// documentForms are the Accept headers of discovery and OpenAPI.
var documentForms = []string{
	"", "*/*", "application/json", "application/json, */*", "application/json;q=0.9,application/vnd.kubernetes.protobuf", "text/html",
	kubectlAsks, aggregated + ",application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json", aggregated, aggregated + ";profile=nopeer", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
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

// Discovery and OpenAPI are the same through the proxy in every form.
func TestDiscovery(t *testing.T) {
	current := hashed(t, openAPI3Path)
	for _, target := range []string{
		"/api", "/apis", "/apis?timeout=32s", "/openapi/v2", "/openapi/v3", openAPI3Path, current, current + "&timeout=32s",
		openAPI3Path + "?hash=0123456789ABCDEF", "/openapi/v3/apis/no.such.group/v1", "/openapi/v3/.well-known/openid-configuration",
		"/api/v1", "/apis/apps", "/apis/apps/v1", "/apis/no.such.group", "/apis/example.com/v1", "/version", "/apis/", "/apis?x=1",
		"/apis?timeout=x", "/openapi/v2?timeout=0", "/openapi/v2/", openAPI3Path + "?hash=", openAPI3Path + "/", "/openapi/v3/apis%2Fapps/v1",
	} {
		t.Run(strings.ReplaceAll(target[:min(len(target), 60)], "/", "|"), func(t *testing.T) {
			t.Parallel()
			for _, accept := range documentForms {
				for _, gzip := range []bool{false, true} {
					if !*allForms && cluster.Draw(8, target, accept, strconv.FormatBool(gzip)) != 0 {
						continue
					}
					sameDocument(t, asForm(get(target), accept, gzip))
				}
			}
			sameDocument(t, request{Method: http.MethodHead, Target: target})
		})
	}
}

// sameDocument compares a document. Documents change for some time after the definition of a
// resource has changed, so a difference counts only if the document is the same afterwards.
func sameDocument(t *testing.T, r request) {
	t.Helper()
	var err error
	for end := time.Now().Add(cluster.Limit); time.Now().Before(end); {
		want := apiserver.AskT(t, r)
		if err = compareDocument(t.Context(), r, want); err == nil {
			return
		}
		if now := apiserver.AskT(t, r); now.Header.Get("Etag") == want.Header.Get("Etag") && bytes.Equal(now.Body, want.Body) {
			break
		}
	}
	t.Error(err)
}

// compareDocument compares a document, without a condition and with conditions.
func compareDocument(ctx context.Context, r request, want reply) error {
	tag := want.Header.Get("Etag")
	if err := (row{request: r, status: want.Status, from: upstream}).try(ctx); err != nil || tag == "" {
		return err
	}
	for _, condition := range []string{tag, `"other"`, "W/" + tag, `"other", ` + tag, "*"} {
		if err := (row{request: r.With("If-None-Match", condition), from: upstream}).try(ctx); err != nil {
			return fmt.Errorf("if none matches %s: %w", condition, err)
		}
	}
	return nil
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
	for range cachetest.Rounds(4, 20) {
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
	shows := func(e *cluster.Endpoint) bool {
		body, err := opened(must(g.t, e, r, http.StatusOK), same)
		if err != nil {
			g.t.Fatal(err)
		}
		return bytes.Contains(body, []byte(g.resource))
	}
	cluster.Eventually(g.t, "upstream shows "+g.resource+" in "+r.Target, func() bool { return shows(apiserver) })
	if !shows(proxied) {
		g.t.Errorf("%s has no %s", r.Target, g.resource)
	}
}
