package views

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A view refuses to write what it shows only in part, and changes nothing.
func TestRefusedWrites(t *testing.T) {
	w := sharedWorld(t)
	namespace := newNamespace(t, w)
	for _, name := range []string{"api/v1/pods", "api/v1/configmaps", "api/v1/nodes", "apis/apps/v1/deployments", "apis/example.com/v1/gauges", "api/v1/secrets"} {
		r := w.find(t, name)
		s := &script{w: w, r: r, namespace: namespace, prefix: cluster.UniqueName("refused")}
		if err := s.create(t.Context()); err != nil {
			t.Fatal(err)
		}
		one := r.in(namespace) + "/" + s.names[0]
		before := w.mustT(t, w.api, cluster.Get(one))
		for _, write := range []cluster.Request{
			{Method: http.MethodPost, Target: r.in(namespace), Body: string(before.Body)},
			{Method: http.MethodPut, Target: one, Body: string(before.Body)},
			{Method: http.MethodPatch, Target: one, Body: `{"metadata":{"labels":{"a":"b"}}}`},
			{Method: http.MethodDelete, Target: one},
			{Method: http.MethodDelete, Target: r.in(namespace)},
			{Method: http.MethodDelete, Target: r.in(namespace) + "?labelSelector=nobody"},
			{Method: http.MethodPut, Target: one + "/status", Body: string(before.Body)},
			{Method: http.MethodPatch, Target: one + "/status", Body: `{"status":{}}`},
		} {
			v := r.views[cluster.Draw(len(r.views), write.Method, write.Target)]
			write.Target = v.at(write.Target)
			got := w.proxy.AskT(t, write.With("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[write.Method == http.MethodPatch]))
			status, err := decode(got.Body)
			if err != nil || got.Status != http.StatusMethodNotAllowed || textAt(status, "kind") != "Status" || textAt(status, "reason") != "MethodNotAllowed" {
				t.Errorf("%s %s: %d %s", write.Method, write.Target, got.Status, got.Body)
			}
		}
		if after := w.mustT(t, w.api, cluster.Get(one)); string(after.Body) != string(before.Body) {
			t.Errorf("%s has changed: %s", one, after.Body)
		}
	}
}

func newNamespace(t *testing.T, w *world) string {
	t.Helper()
	name := cluster.UniqueName("written")
	if err := w.createNamespace(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return name
}

// Subresources that are created have bodies of their own: a view lets them pass.
func TestSubresources(t *testing.T) {
	w := sharedWorld(t)
	namespace := newNamespace(t, w)
	pods, accounts := w.find(t, "api/v1/pods"), w.find(t, "api/v1/serviceaccounts")
	plain := map[string]any{"kind": "Pod", "apiVersion": "v1", "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}
	for _, r := range []struct {
		of     *resource
		object map[string]any
	}{{pods, plain}, {accounts, map[string]any{"kind": "ServiceAccount", "apiVersion": "v1"}}} {
		if err := w.createCopy(t.Context(), r.of, merged(map[string]any{"metadata": map[string]any{"name": ""}}, r.object), namespace, "one", 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, write := range []struct {
		of           *resource
		target, body string
	}{
		{pods, "/binding", `{"kind":"Binding","apiVersion":"v1","metadata":{"name":"one"},"target":{"kind":"Node","name":"n1"}}`},
		{pods, "/eviction", `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"one"},"deleteOptions":{"gracePeriodSeconds":0}}`},
		{accounts, "/token", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["a"]}}`},
	} {
		target := write.of.views[0].at(write.of.in(namespace) + "/one" + write.target)
		got := w.proxy.AskT(t, cluster.Request{Method: http.MethodPost, Target: target, Body: write.body}.With("Content-Type", "application/json"))
		if got.Status != http.StatusCreated {
			t.Errorf("%s: %d %s", target, got.Status, got.Body)
		}
		if write.target == "/token" {
			if answer, err := decode(got.Body); err != nil || textAt(answer, "status", "token") == "" {
				t.Errorf("%s: %s", target, got.Body)
			}
		}
	}
}

// Resources that a view does not cut are whole, and can be written.
func TestOtherResources(t *testing.T) {
	w := sharedWorld(t)
	namespace := newNamespace(t, w)
	v, maps := w.find(t, "api/v1/pods").views[0], w.find(t, "api/v1/configmaps")
	target, one := v.at(maps.in(namespace)), v.at(maps.in(namespace)+"/whole")
	send := func(method, target, body string) cluster.Answer {
		mime := "application/json"
		if method == http.MethodPatch {
			mime = "application/merge-patch+json"
		}
		return w.mustT(t, w.proxy, cluster.Request{Method: method, Target: target, Body: body}.With("Content-Type", mime))
	}
	send(http.MethodPost, target, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"whole","labels":{"a.b/c":"d"}},"data":{"k":"v"}}`)
	send(http.MethodPatch, one, `{"data":{"k":"w"}}`)
	got := w.mustT(t, w.proxy, cluster.Get(one))
	want := w.mustT(t, w.api, cluster.Get(maps.in(namespace)+"/whole"))
	if string(got.Body) != string(want.Body) {
		t.Errorf("the object is %s instead of %s", got.Body, want.Body)
	}
	protobuf := w.mustT(t, w.proxy, cluster.Get(target).With("Accept", "application/vnd.kubernetes.protobuf"))
	if got := protobuf.Header.Get("Content-Type"); got != "application/vnd.kubernetes.protobuf" {
		t.Errorf("the Content-Type is %q", got)
	}
	send(http.MethodDelete, one, "")
	for _, path := range []string{"/version", "/api/v1", "/openapi/v2"} {
		if got := w.mustT(t, w.proxy, cluster.Get(v.at(path))); len(got.Body) == 0 {
			t.Errorf("%s is empty", path)
		}
	}
}

// Views have protobuf if the cache answers and a client accepts JSON, too. Unknown views do not exist.
func TestNegotiation(t *testing.T) {
	w := sharedWorld(t)
	const proto = "application/vnd.kubernetes.protobuf"
	for _, name := range []string{"api/v1/pods", "api/v1/secrets", "apis/example.com/v1/gauges"} {
		r := w.find(t, name)
		v := r.views[0]
		objects := w.mustT(t, w.api, cluster.Get(r.in(namespace)))
		whole, err := decode(objects.Body)
		if err != nil {
			t.Fatal(err)
		}
		one := r.pathOf(at(whole, "items").(list)[0].(*object))
		for _, target := range []string{
			r.path(), r.path() + "?resourceVersion=0", r.path() + "?watch=true&resourceVersion=0", one, one + "?resourceVersion=0",
		} {
			for _, accept := range []struct {
				header string
				status int
			}{
				{proto, http.StatusNotAcceptable},
				{proto + ";stream=watch", http.StatusNotAcceptable},
				{"application/yaml", http.StatusNotAcceptable},
				{"application/cbor", http.StatusNotAcceptable},
				{proto + "," + "application/json", http.StatusOK},
				{proto + ";q=1.0, application/json;q=0.1", http.StatusOK},
				{"application/yaml,application/json", http.StatusOK},
				{"application/cbor,application/json", http.StatusOK},
				{"*/*", http.StatusOK},
				{"application/json;stream=watch,application/json", http.StatusOK},
			} {
				got, err := w.proxy.Open(t.Context(), cluster.Get(v.at(target)).With("Accept", accept.header))
				if err != nil {
					t.Fatal(err)
				}
				mime, messages := got.Header.Get("Content-Type"), strings.HasPrefix(accept.header, proto) && r.inProtobuf() && target != one
				want := map[bool]string{true: proto, false: "application/json"}[messages]
				if got.StatusCode != accept.status || accept.status == http.StatusOK && !strings.HasPrefix(mime, want) {
					t.Errorf("%s with Accept %q: %d %q", v.at(target), accept.header, got.StatusCode, mime)
				}
				if accept.status == http.StatusOK && !strings.Contains(target, "watch=true") && !messages {
					body, err := io.ReadAll(got.Body)
					if err != nil {
						t.Fatal(err)
					}
					w.compareBody(t.Context(), t, v, target, body)
				}
				got.Body.Close()
			}
		}
		for _, path := range []string{"/views/no-such-view", "/views/", "/views", "/views/" + v.name + "x"} {
			if got := w.proxy.AskT(t, cluster.Get(path+r.path())); got.Status != http.StatusNotFound {
				t.Errorf("%s: %d %.300s", path+r.path(), got.Status, got.Body)
			}
		}
	}
}

// compareBody compares an answer with the cut answer without a view.
func (w *world) compareBody(ctx context.Context, t *testing.T, v *view, target string, body []byte) {
	t.Helper()
	of := &read{request: cluster.Get(target)}
	whole, _, err := w.readAll(ctx, of, "", "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(body)
	if err != nil {
		t.Errorf("%s: %v", target, err)
		return
	}
	cut := v.cut
	if at(whole, "items") != nil {
		cut = v.cutItems
	}
	if d := differs(cut(whole), settled(got), "the answer"); d != "" {
		t.Error(fmt.Sprintf("%s in %s: ", target, v), d)
	}
}
