package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// These tests ask what only views are asked. All other rows are sent in views, too.

// labelsOf returns the view that keeps only labels.
func labelsOf(c *collection) *view { return views[c.configured()][0] }

// Whatever is asked in a view, and however, it shows no more than its fields.
func TestUnusualRequestsInViews(t *testing.T) {
	gauge := &collection{root: "/apis/example.com/v1", resource: "gauges", namespaced: true, one: "specimen"}
	pod := &collection{root: "/api/v1", resource: "pods", namespaced: true, one: "rich"}
	secret := &collection{root: "/api/v1", resource: "secrets", namespaced: true, one: "rich", excluded: true}
	var rows []row
	for _, c := range []*collection{pod, gauge, secret} {
		all, one := c.in(specimensIn), c.in(specimensIn)+"/"+c.one
		watching := strings.Replace(all, c.root, c.root+"/watch", 1)
		const brief, watch = "?timeoutSeconds=1", "?watch=true&timeoutSeconds=1&resourceVersion=0"
		const forwarded, forwardedWatch = "?unknown=1", watch + "&unknown=1"
		for _, r := range []request{
			get(all + "/"), get("/" + all), get(strings.Replace(all, "/namespaces/", "//namespaces//", 1)), get(one + "/"),
			get(strings.Replace(all, c.resource, fmt.Sprintf("%%%X", c.resource[0])+c.resource[1:], 1)),
			get(one + brief + "&watch=true"), get(one + watch), get(watching + brief), get(watching + "/" + c.one + brief),
			get(all + forwardedWatch), get(all+forwardedWatch).With("Accept", table), get(all+forwardedWatch).With("Accept-Encoding", "gzip"),
			get(all+forwardedWatch).With("Accept", encodings[4].watch), get(all+forwarded).With("Accept-Encoding", "gzip"),
			get(all+forwarded+"&includeObject=Object").With("Accept", table), get(all+forwarded).With("Accept", encodings[4].list),
			get(one+"?resourceVersion=0").With("Accept", protobuf+";stream=watch, */*"), get(all).With("Accept", "Application/Vnd.kubernetes.Protobuf, */*"),
			get(all).With("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1beta1"),
			get(all).With("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"),
			get(all).With("Accept", "application/json;profile=nopeer"), get(all).With("Accept", ""),
			get(all + "?resourceVersion=0&unknown=1"), get(all + "?resourceVersion=0&limit=1"), get(all).With("X-HTTP-Method-Override", "PUT"),
			{Method: http.MethodHead, Target: all},
			{Method: http.MethodOptions, Target: all},
			{Method: http.MethodGet, Target: all, Body: "{}"},
			get(one + "/status"), get(one + "/scale"), get(one + "/ephemeralcontainers"), get(one + "/resize"), get(c.in(specimensIn) + "/nobody"),
			get(all + "?fieldSelector=spec.none%3Dx"), get(all + "?labelSelector=!!"), get(all + "?resourceVersion=x"), get(all + "?continue=x"),
		} {
			rows = append(rows, row{name: fmt.Sprint(r.Method, " ", r.Target, " ", r.Header), request: r, view: labelsOf(c), from: anywhere, open: listOrNot, moving: true})
		}
	}
	checkAsIs(t, rows)
}

// listOrNot is the rule for responses that may be lists, whose resourceVersions may differ.
func listOrNot(body []byte) ([]byte, error) {
	if meta := gjson.GetBytes(body, "metadata"); meta.Get("resourceVersion").Exists() && !meta.Get("name").Exists() {
		return SomeState(0)(body)
	}
	return body, nil
}

// Resources that a view does not cut are as without the view. Their forms are not restricted.
func TestOtherResourcesInViews(t *testing.T) {
	v := &view{name: labelsOf(pods).name, foreign: true}
	list := configMaps.expand(configMaps.in("a-b") + "?resourceVersion=$N&resourceVersionMatch=Exact")
	var rows []row
	for _, accept := range []string{"application/json", protobuf, "application/yaml", table} {
		for target, from := range map[string]source{list: cache, configMaps.in("a") + "/plain": upstream, "/version": upstream, "/api/v1": upstream} {
			r := get(target).With("Accept", accept)
			rows = append(rows, row{name: target + " as " + accept, request: r, view: v, from: inForm(r, from), moving: true})
		}
	}
	checkAsIs(t, rows)
}

// A view refuses to write what it shows only in part, and changes nothing. Other resources can be
// written, and so can subresources that have bodies of their own.
func TestWritesInViews(t *testing.T) {
	home := newNamespaces(t, "written", 1)[0]
	send := func(c *collection, method, target, body string) reply {
		kind := map[bool]string{true: "application/merge-patch+json", false: "application/json"}[method == http.MethodPatch]
		of := views[c.configured()]
		v := of[cluster.Draw(len(of), method, c.name, strings.ReplaceAll(target, home, ""))]
		return proxied.AskT(t, v.of(request{Method: method, Target: target, Body: body}.With("Content-Type", kind)))
	}
	pod := object{of: pods, namespace: home, name: "one", fields: podSpec("")}
	account := object{of: accounts, namespace: home, name: "one"}
	secret := object{of: secrets, namespace: home, name: "one"}
	for _, o := range []object{pod, account, secret, {of: nodes, name: home}, {of: widgets, namespace: home, name: "one", fields: numbers}} {
		o.createT(t)
		before := must(t, apiserver, get(o.path()), http.StatusOK)
		for _, r := range []struct{ method, target, body string }{
			{http.MethodPost, o.of.in(home), string(before.Body)},
			{http.MethodPut, o.path(), string(before.Body)},
			{http.MethodPatch, o.path(), `{"metadata":{"labels":{"a":"b"}}}`},
			{http.MethodDelete, o.path(), ""},
			{http.MethodDelete, o.of.in(home), ""},
			{http.MethodDelete, o.of.in(home) + "?labelSelector=nobody", ""},
			{http.MethodPut, o.path() + "/status", string(before.Body)},
			{http.MethodPatch, o.path() + "/status", `{"status":{}}`},
		} {
			got := send(o.of, r.method, r.target, r.body)
			if got.Status != http.StatusMethodNotAllowed || gjson.GetBytes(got.Body, "reason").Str != "MethodNotAllowed" {
				t.Errorf("%s %s: %d %s", r.method, r.target, got.Status, got.Body)
			}
		}
		if after := must(t, apiserver, get(o.path()), http.StatusOK); string(after.Body) != string(before.Body) {
			t.Errorf("%s has changed: %s", o.path(), after.Body)
		}
	}
	maps := object{of: configMaps, namespace: home, name: "other"}
	for _, r := range []struct {
		of                   *collection // whose view is used
		method, target, body string
		status               int
		has                  string
	}{
		{pods, http.MethodPost, pod.path() + "/binding", `{"kind":"Binding","apiVersion":"v1","metadata":{"name":"one"},"target":{"kind":"Node","name":"n1"}}`, 201, ""},
		{pods, http.MethodPost, pod.path() + "/eviction", `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"one"},"deleteOptions":{"gracePeriodSeconds":0}}`, 201, ""},
		{accounts, http.MethodPost, account.path() + "/token", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["a"]}}`, 201, "status.token"},
		{pods, http.MethodPost, configMaps.in(home), maps.json(), 201, "metadata.uid"},
		{pods, http.MethodPatch, maps.path(), `{"data":{"k":"w"}}`, 200, "data.k"},
		{pods, http.MethodDelete, maps.path(), "", 200, ""},
	} {
		got := send(r.of, r.method, r.target, r.body)
		if got.Status != r.status || r.has != "" && gjson.GetBytes(got.Body, r.has).Str == "" {
			t.Errorf("%s %s: %d %s", r.method, r.target, got.Status, got.Body)
		}
	}
}

// Views have JSON, and protobuf if the cache answers and the client accepts JSON, too. Unknown views do
// not exist.
func TestNegotiationInViews(t *testing.T) {
	for _, c := range []*collection{pods, secrets, widgets} {
		v := labelsOf(c)
		for _, target := range []string{c.all(), c.all() + "?resourceVersion=0", c.all() + "?watch=true&resourceVersion=0", c.in("a") + "/" + c.one + "?resourceVersion=0"} {
			for accept, status := range map[string]int{
				protobuf: 406, protobuf + ";stream=watch": 406, "application/yaml": 406, "application/cbor": 406, protobuf + ";q=1.0, application/json;q=0.1": 200,
				"application/yaml,application/json": 200, "application/cbor,application/json": 200, "*/*": 200, "application/json;stream=watch,application/json": 200,
			} {
				got, err := proxied.Open(t.Context(), v.of(get(target).With("Accept", accept)))
				if err != nil {
					t.Fatal(err)
				}
				got.Body.Close()
				want := map[bool]string{true: protobuf, false: "application/json"}[c == pods && strings.HasPrefix(accept, protobuf) && !inParts]
				kind := got.Header.Get("Content-Type")
				right := strings.HasPrefix(kind, want) || inParts && strings.HasPrefix(kind, protobuf)
				if got.StatusCode != status && got.StatusCode != http.StatusNotFound || status == http.StatusOK && !right {
					t.Errorf("%s with Accept %q: %d %q", v.of(get(target)).Target, accept, got.StatusCode, kind)
				}
			}
		}
		for _, path := range []string{"/views/no-such-view", "/views/", "/views", "/views/" + v.name + "x"} {
			if got := must(t, proxied, get(path+c.all()), http.StatusNotFound); strings.HasPrefix(path, "/views/") && !strings.Contains(string(got.Body), "no such view") {
				t.Errorf("%s: %s", path, got.Body)
			}
		}
	}
}

// Informers that prefer protobuf have the cut objects in the end.
func TestInformersInViews(t *testing.T) {
	s, v := newScript(t, pods), labelsOf(pods)
	config := &rest.Config{
		Host: proxied.URL + v.of(request{}).Target, BearerToken: proxied.Token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig: rest.ContentConfig{ContentType: protobuf},
	}
	typed := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace(s.home))
	partial := metadatainformer.NewFilteredSharedInformerFactory(metadata.NewForConfigOrDie(config), 0, s.home, nil)
	all := map[string]clientcache.SharedIndexInformer{
		"application/json": typed.Core().V1().Pods().Informer(), encodings[4].get: partial.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Informer(),
	}
	for _, f := range []interface {
		Start(stop <-chan struct{})
		Shutdown()
	}{typed, partial} {
		f.Start(t.Context().Done())
		t.Cleanup(f.Shutdown)
	}
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for accept, informer := range all {
		due := map[string]string{}
		for _, item := range gjson.GetBytes(must(t, apiserver, get(pods.in(s.home)), http.StatusOK).Body, "items").Array() {
			whole := must(t, apiserver, get(pods.pathOf(item)).With("Accept", accept), http.StatusOK)
			shown, err := fromJSON(v.body(string(whole.Body)))
			if err != nil {
				t.Fatal(err)
			}
			due[item.Get("metadata.name").Str] = shown
		}
		cluster.Eventually(t, "an informer has the cut objects", func() bool {
			has := map[string]string{}
			for _, o := range informer.GetStore().List() {
				o := o.(runtime.Object).DeepCopyObject().(message)
				name := o.(metav1.Object).GetName()
				of := gjson.GetMany(due[name], "apiVersion", "kind")
				o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(of[0].Str, of[1].Str))
				// An object's resourceVersion may be newer than what an informer is shown.
				o.(metav1.Object).SetResourceVersion(gjson.Get(due[name], "metadata.resourceVersion").Str)
				text, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				has[name] = string(text)
			}
			return maps.Equal(has, due)
		})
	}
}
