package proxy

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// slimmed returns a client of a server that has views, and the server.
func slimmed(t *testing.T, upstream http.HandlerFunc) (*httpClient, *Server) {
	t.Helper()
	c, _ := cachetest.ConfigMaps(t, recentObjects)
	cachetest.Apply(t, c, cachetest.Sized(t, 2*recentObjects, 100<<10))
	fields := projection.Keep([]projection.Path{{{Key: "data"}, {Key: "a"}}})
	o := testOptions()
	o.Views = map[string]*exchange.View{
		"slim":    {Name: "slim", Fields: fields, Resources: []schema.GroupResource{{Resource: "configmaps"}}},
		"every":   {Name: "every", Fields: fields},
		"nothing": {Name: "nothing", Fields: projection.Drop([]projection.Path{{{Key: "none"}}})},
		"other":   {Name: "other", Fields: projection.Drop([]projection.Path{{{Key: "data"}, {Key: "a"}}})},
	}
	s, l := serveTo(t, oneFeed{feed: &rawFeed{c}}, upstream, o)
	client := clientTo(t, l, "http/1.1")
	client.DisableCompression = true
	return client, s
}

const (
	wholeObject = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c","labels":{"x":"1"}},"data":{"a":"1","b":"2"}}`
	slimObject  = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"data":{"a":"1"}}`
)

// Answers of upstream are cut like those of the cache, in every encoding and length.
func TestForwardedAnswersOfViews(t *testing.T) {
	long := strings.Repeat(wholeObject+",", 2000) + wholeObject
	slim := strings.Repeat(slimObject+",", 2000) + slimObject
	for _, c := range []struct {
		target, answer, want string
	}{
		{"/api/v1/namespaces/a/configmaps/c", wholeObject, slimObject},
		{"/api/v1/namespaces/a/configmaps?unknown=1", `{"kind":"ConfigMapList","items":[` + wholeObject + `]}`, `{"kind":"ConfigMapList","items":[` + slimObject + `]}`},
		{"/api/v1/namespaces/a/configmaps?unknown=1", `{"kind":"ConfigMapList","items":[` + long + `]}`, `{"kind":"ConfigMapList","items":[` + slim + `]}`},
		{"/api/v1/namespaces/a/configmaps?watch=1&unknown=1", `{"type":"ADDED","object":` + wholeObject + "}\n" + `{"type":"ERROR","object":{"kind":"Status"}}`, `{"type":"ADDED","object":` + slimObject + "}\n" + `{"type":"ERROR","object":{"kind":"Status"}}`},
		{recentPath + "?limit=1&" + shardSelector, `{"kind":"ConfigMapList","metadata":{"shardInfo":{"selector":"s"}},"items":[` + wholeObject + `]}`, `{"kind":"ConfigMapList","metadata":{"shardInfo":{"selector":"s"}},"items":[` + slimObject + `]}`},
		{recentPath + "?watch=1&" + shardSelector, `{"type":"ADDED","object":` + wholeObject + "}\n", `{"type":"ADDED","object":` + slimObject + "}\n"},
		{"/api/v1/watch/configmaps", `{"type":"DELETED","object":` + wholeObject + "}\n", `{"type":"DELETED","object":` + slimObject + "}\n"},
		{"//api/v1/namespaces/a/configmaps/c", wholeObject, slimObject},
		{"/api/v1/namespaces/a/configmaps/c/status", wholeObject, slimObject},
		{"/api/v1/namespaces/a/configmaps/c/scale", wholeObject, wholeObject},
		{"/api/v1/namespaces/a/secrets/c?resourceVersion=x", wholeObject, wholeObject},
		{"/version", wholeObject, wholeObject},
		{"/api/v1/namespaces/a/configmaps/failed", `{"kind":"Status","code":404,"details":{}}`, `{"kind":"Status","code":404,"details":{}}`},
	} {
		for _, encoding := range []string{"", "gzip"} {
			synctest.Test(t, func(t *testing.T) {
				var asked http.Request
				client, _ := slimmed(t, func(w http.ResponseWriter, r *http.Request) {
					asked = *r
					w.Header().Set("Content-Type", "application/json")
					code := map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[strings.HasSuffix(c.target, "/failed")]
					if encoding == "" {
						w.WriteHeader(code)
						_, _ = io.WriteString(w, c.answer)
						return
					}
					w.Header().Set("Content-Encoding", encoding)
					w.WriteHeader(code)
					z := gzip.NewWriter(w)
					_, _ = io.WriteString(z, c.answer)
					_ = z.Close()
				})
				resp, body := client.get(t, "/views/slim"+c.target, "Accept", "application/vnd.kubernetes.protobuf, application/json, application/yaml", "Accept-Encoding", "gzip")
				if resp.Header.Get("Content-Encoding") == "gzip" {
					z, err := gzip.NewReader(strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					plain, err := io.ReadAll(z)
					if body = string(plain); err != nil {
						t.Fatal(err)
					}
				}
				if body != c.want {
					t.Errorf("%s %q: %d %.300s, want %.300s", c.target, encoding, resp.StatusCode, body, c.want)
				}
				if asked.RequestURI != c.target && asked.RequestURI != strings.TrimPrefix(c.target, "/") {
					t.Errorf("%s: upstream was asked for %s", c.target, asked.RequestURI)
				}
				if accept := asked.Header.Get("Accept"); c.want != c.answer && strings.TrimSpace(accept) != "application/json" {
					t.Errorf("%s: upstream was asked for %s", c.target, accept)
				}
			})
		}
	}
}

// An answer that cannot be cut does not come through a view. It gives its slot back.
func TestAnswersThatCannotBeCut(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"protobuf":  func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf") },
		"no type":   func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil },
		"brotli":    func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "br") },
		"malformed": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"data" `) },
		"not gzip":  func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip") },
		"half":      func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"items":[`) },
	} {
		synctest.Test(t, func(t *testing.T) {
			client, s := slimmed(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer(w)
				if name != "half" {
					_, _ = io.WriteString(w, `"`+strings.Repeat("secret", exchange.SmallBody)+`"`)
				}
			})
			resp := client.open(t, "/views/slim/api/v1/namespaces/a/configmaps/c", "Accept", anyJSON)
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode == http.StatusOK && err == nil || bytes.Contains(body, []byte("secret")) {
				t.Errorf("%s: %d %s, %v", name, resp.StatusCode, body, err)
			}
			if synctest.Wait(); s.queues.forwards.Taken() != 0 {
				t.Errorf("%s: a slot is taken", name)
			}
		})
	}
}

// A view refuses writes of cut objects before upstream sees them, and all forms except JSON.
func TestRefusalsOfViews(t *testing.T) {
	const maps, one = "/api/v1/namespaces/a/configmaps", "/api/v1/namespaces/a/configmaps/c"
	for _, c := range []struct {
		view, method, target, accept string
		code                         int
	}{
		{"slim", http.MethodPost, maps, "", http.StatusMethodNotAllowed},
		{"slim", http.MethodPut, one, "", http.StatusMethodNotAllowed},
		{"slim", http.MethodPatch, one, "", http.StatusMethodNotAllowed},
		{"slim", http.MethodDelete, one, "", http.StatusMethodNotAllowed},
		{"slim", http.MethodDelete, maps, "", http.StatusMethodNotAllowed},
		{"slim", http.MethodPut, one + "/status", "", http.StatusMethodNotAllowed},
		{"slim", http.MethodPatch, one + "/scale", "", http.StatusMethodNotAllowed},
		{"slim", http.MethodPut, "/" + one, "", http.StatusMethodNotAllowed},
		{"slim", http.MethodPost, one + "/eviction", "", http.StatusOK},
		{"every", http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", http.StatusOK},
		{"every", http.MethodPut, "/api/v1/namespaces/a/pods/p/proxy/x", "", http.StatusOK},
		{"slim", http.MethodPut, "/api/v1/namespaces/a/secrets/c", "", http.StatusOK},
		{"every", http.MethodPut, "/api/v1/namespaces/a/secrets/c", "", http.StatusMethodNotAllowed},
		{"every", http.MethodPut, "/healthz", "", http.StatusOK},
		{"slim", http.MethodGet, maps, "application/vnd.kubernetes.protobuf", http.StatusNotAcceptable},
		{"slim", http.MethodGet, one, "application/yaml,application/cbor;q=0.1", http.StatusNotAcceptable},
		{"slim", http.MethodGet, maps + "?resourceVersion=0", "application/vnd.kubernetes.protobuf;q=1,*/*", http.StatusOK},
		{"slim", http.MethodGet, "/api/v1/namespaces/a/secrets/c?resourceVersion=x", "application/vnd.kubernetes.protobuf", http.StatusOK},
		{"slim", http.MethodGet, maps + "?watch=1", "", http.StatusBadRequest},
		{"none", http.MethodGet, maps, "", http.StatusNotFound},
		{"SLIM", http.MethodGet, maps, "", http.StatusNotFound},
		{"slim%20", http.MethodGet, maps, "", http.StatusNotFound},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := false
			client, _ := slimmed(t, func(w http.ResponseWriter, _ *http.Request) {
				asked = true
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "{}")
			})
			req, err := http.NewRequestWithContext(t.Context(), c.method, client.url+"/views/"+c.view+c.target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", c.accept)
			if strings.HasSuffix(c.target, "watch=1") {
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", "websocket")
			}
			resp, err := client.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.code || c.code != http.StatusOK && (asked || !strings.Contains(string(body), "view")) {
				t.Errorf("%s %s of %s as %s: %d %s, asked %t", c.method, c.target, c.view, c.accept, resp.StatusCode, body, asked)
			}
			if c.code == http.StatusMethodNotAllowed && (resp.Header.Get("Allow") != "GET" || !strings.Contains(string(body), "without /views/"+c.view)) {
				t.Errorf("%s %s: %v %s", c.method, c.target, resp.Header, body)
			}
		})
	}
}

// Without views, their paths are upstream's, like all others.
func TestNoViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked string
		_, l := serveForwards(t, func(_ http.ResponseWriter, r *http.Request) { asked = r.RequestURI }, testLimits())
		const target = "/views/slim/api/v1/pods?limit=1"
		if resp, _ := clientTo(t, l, "http/1.1").get(t, target); resp.StatusCode != http.StatusOK || asked != target {
			t.Errorf("%d, upstream was asked for %s", resp.StatusCode, asked)
		}
	})
}

// The cache answers the reads of views, each with its own fields, also after a reload.
func TestCacheAnswersViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, s := slimmed(t, func(http.ResponseWriter, *http.Request) { t.Error("upstream was asked") })
		s.SetOptions(Options{Options: s.options.Load().Options, Limits: s.options.Load().Limits})
		const partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		for _, query := range []string{"?resourceVersion=0", "", "?limit=3", "?labelSelector=x%21%3D1&resourceVersion=0"} {
			for _, accept := range []string{anyJSON, partial, anyJSON} {
				_, whole := client.get(t, "/views/nothing"+recentPath+query, "Accept", accept)
				for _, name := range []string{"slim", "other"} {
					_, got := client.get(t, "/views/"+name+recentPath+query, "Accept", accept)
					want, err := s.options.Load().Views[name].Fields.AppendAnswer(nil, []byte(whole), projection.List)
					if err != nil || got != string(want) || !strings.Contains(got, `"c-000002"`) {
						t.Errorf("%s %s as %s: %.300s, want %.300s, %v", name, query, accept, got, want, err)
					}
				}
			}
		}
		if _, large := client.get(t, "/views/nothing"+recentPath+"/c-000000?resourceVersion=0", "Accept", anyJSON); len(large) < 100<<10 || !strings.HasPrefix(large, `{"kind":"ConfigMap",`) {
			t.Errorf("a large object: %d bytes, %.100s", len(large), large)
		}
	})
}
