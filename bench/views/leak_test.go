package views

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// Unusual requests show no field that the view does not keep. They may be refused.
func TestUnusualRequests(t *testing.T) {
	w := sharedWorld(t)
	namespace := newNamespace(t, w)
	type question struct {
		request      cluster.Request
		name, secret string
	}
	var all []question
	for _, name := range []string{"api/v1/pods", "apis/example.com/v1/gauges", "api/v1/secrets"} {
		r := w.find(t, name)
		s := &script{w: w, r: r, namespace: namespace, prefix: cluster.UniqueName("leaks")}
		if err := s.create(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, request := range unusual(r, namespace, s.names[0], w.proxy.URL) {
			request.Target = r.views[viewsEach].at(request.Target) // which keeps only labels
			all = append(all, question{request, s.names[0], sentinel + s.prefix})
		}
	}
	var shown atomic.Int64
	err := workload.Parallel(t.Context(), len(all), len(all), func(ctx context.Context, i int) error {
		q := all[i]
		answer, err := w.proxy.Ask(ctx, q.request)
		if err != nil {
			return err
		}
		body, err := unzipped(answer)
		if err != nil {
			return err
		}
		if bytes.Contains(body, []byte(q.secret)) {
			t.Errorf("%s %s %v: %d shows %s: %.3000s", q.request.Method, q.request.Target, q.request.Header, answer.Status, q.secret, body)
		}
		if answer.Status == http.StatusOK && bytes.Contains(body, []byte(q.name)) {
			shown.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const least = 40
	if shown.Load() < least {
		t.Errorf("%d answers of %d show the object: the test does not test", shown.Load(), len(all))
	}
}

// shardSelector is a parameter that the proxy leaves to the apiserver.
var shardSelector = "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')")

// unusual returns requests for an object and its collection.
func unusual(r *resource, namespace, name, origin string) []cluster.Request {
	all, one := r.in(namespace), r.in(namespace)+"/"+name
	watching := strings.Replace(all, r.root, r.root+"/watch", 1)
	const brief, watch = "?timeoutSeconds=1", "?watch=true&timeoutSeconds=1&resourceVersion=0"
	return []cluster.Request{
		cluster.Get(all),
		cluster.Get(all + "/"),
		cluster.Get("/" + all),
		cluster.Get(strings.Replace(all, r.plural, fmt.Sprintf("%%%X", r.plural[0])+r.plural[1:], 1)),
		cluster.Get(strings.Replace(all, "/namespaces/", "//namespaces//", 1)),
		cluster.Get(one + "/"),
		cluster.Get(one + brief + "&watch=true"),
		cluster.Get(one + watch),
		cluster.Get(all + watch),
		cluster.Get(all + watch + "&fieldSelector=metadata.name%3D" + name),
		cluster.Get(all+watch).With("Origin", origin),
		cluster.Get(all+watch).With("Origin", origin).With("Accept", table),
		cluster.Get(all+watch).With("Origin", origin).With("Accept", partial),
		cluster.Get(all+watch).With("Origin", origin).With("Accept-Encoding", "gzip"),
		cluster.Get(watching + brief),
		cluster.Get(watching + "/" + name + brief),
		cluster.Get(all).With("Accept", protobuf),
		cluster.Get(all+watch).With("Accept", protobuf),
		cluster.Get(all+watch).With("Accept", strings.ReplaceAll(partials, "List", "")),
		cluster.Get(one+"?resourceVersion=0").With("Accept", "application/vnd.kubernetes.protobuf;stream=watch, */*"),
		cluster.Get(all).With("Accept", "Application/Vnd.kubernetes.Protobuf, */*"),
		cluster.Get(all).With("Accept", "application/*"),
		cluster.Get(all).With("Accept", "Application/JSON"),
		cluster.Get(all).With("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1beta1"),
		cluster.Get(all).With("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"),
		cluster.Get(all).With("Accept", "application/json;profile=nopeer"),
		cluster.Get(all).With("Accept", "text/html"),
		cluster.Get(all).With("Accept", ""),
		cluster.Get(all + "?resourceVersion=0&unknown=1"),
		cluster.Get(all + "?" + shardSelector),
		cluster.Get(all + watch + "&" + shardSelector),
		cluster.Get(all + "?resourceVersion=0&limit=1"),
		cluster.Get(all).With("Accept-Encoding", "gzip, deflate, br"),
		cluster.Get(all).With("X-HTTP-Method-Override", "PUT"),
		{Method: http.MethodHead, Target: all},
		{Method: http.MethodOptions, Target: all},
		{Method: http.MethodGet, Target: all, Body: "{}"},
		cluster.Get(one + "/status"),
		cluster.Get(one + "/scale"),
		cluster.Get(one + "/ephemeralcontainers"),
		cluster.Get(one + "/resize"),
	}
}
