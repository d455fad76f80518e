package shards

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// A request with a selector in the view shows objects of its shard or fails. It is never forwarded,
// and deletes nothing.
func TestNeverForwarded(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	const least = 12 // more, if all were on one side of the half
	home := w.on.server.NamespaceT(t, cluster.UniqueName("never"))
	half := share(0, 2)
	var others []string // names and uids of objects that are not in the shard
	objects, mine := 0, 0
	for ; objects < least || mine == 0 || mine == objects; objects++ {
		o, err := w.create(t.Context(), configmaps, home, configmaps.object(fmt.Sprintf("named-%03d", objects), "red", nil))
		if err != nil {
			t.Fatal(err)
		}
		if uid := string(o.GetUID()); half.has(uid, "") {
			mine++
		} else {
			others = append(others, uid, o.GetName())
		}
	}
	w.settle(t)
	requests := refusable(w, home, half, others[1])
	var shown, failed atomic.Int64
	err := workload.Parallel(t.Context(), len(requests), len(requests), func(ctx context.Context, i int) error {
		r := requests[i]
		a, err := w.off.proxy.Ask(ctx, r)
		if err != nil {
			return err
		}
		body, err := plain(a)
		if err != nil {
			return err
		}
		for _, other := range others {
			if strings.Contains(string(body), other) && !strings.Contains(r.Target, other) {
				t.Errorf("%s %s %v: %d shows %s of another shard: %.300s", r.Method, r.Target, r.Header, a.Status, other, body)
				break
			}
		}
		switch {
		case a.Status == http.StatusOK && strings.Contains(string(body), "named-"):
			shown.Add(1)
		case a.Status/100 == 4, strings.Contains(string(body), "invalid shard selector: "), a.Status == http.StatusServiceUnavailable, a.Status == http.StatusGatewayTimeout:
			failed.Add(1)
			if r.Method == "" && strings.HasPrefix(string(body), "{") && gjson.GetBytes(body, "kind").Str != "Status" {
				t.Errorf("%s %v: %d %.300s is no Status", r.Target, r.Header, a.Status, body)
			}
		case a.Status != http.StatusOK:
			t.Errorf("%s %s %v: %d %.300s", r.Method, r.Target, r.Header, a.Status, body)
		}
		if r.Method == http.MethodDelete && a.Status/100 == 2 {
			t.Errorf("%s %s: %d %.300s", r.Method, r.Target, a.Status, body)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	left := mustT(t, w.on.api, as(direct, cluster.Get(configmaps.path(home)))).Body
	if n := gjson.GetBytes(left, "items.#").Int(); n != int64(objects) {
		t.Errorf("%d objects of %d are left", n, objects)
	}
	t.Logf("%d answers of %d show objects, and %d requests failed", shown.Load(), len(requests), failed.Load())
	const enough = 8
	if shown.Load() < enough || failed.Load() < 2*enough {
		t.Error("these are too few: the test does not test")
	}
	w.checkAudit(t)
	// Without a selector, deletions are as without the view.
	a := w.off.proxy.AskT(t, below("shards", cluster.Request{Method: http.MethodDelete, Target: configmaps.path(home)}))
	left = mustT(t, w.on.api, as(direct, cluster.Get(configmaps.path(home)))).Body
	if n := gjson.GetBytes(left, "items.#").Int(); a.Status != http.StatusOK || n > 0 {
		t.Errorf("%d %.300s: %d objects are left", a.Status, a.Body, n)
	}
}

// refusable returns requests in the view that a proxy would forward otherwise, and some that are
// like them. Name is an object's in another shard.
func refusable(w *world, home string, s shard, name string) (all []cluster.Request) {
	escaped := queryOf(s)
	selects, quick := "?shardSelector="+escaped, "&timeoutSeconds=1"
	list := configmaps.path(home) + selects
	watch := list + quick + "&watch=true&resourceVersion=0"
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":2,"start":"` + home + `/a\u0000"}`))
	for _, target := range []string{
		list, list + "&resourceVersion=0", list + "+//" + strings.Repeat("+", 8<<10), watch, list + "&unknown=1", list + "&fieldValidation=Strict", list + "&dryRun=All",
		list + "&limit=x", list + "&labelSelector=%3D", list + "&fieldSelector=x%3Dy", list + "&resourceVersion=x", list + "&timeout=x",
		list + "&resourceVersion=2&resourceVersionMatch=Exact", list + "&limit=1&resourceVersion=2&resourceVersionMatch=Exact", list + "&limit=1&resourceVersion=2",
		list + "&continue=x", list + "&continue=" + token, list + "&limit=1&continue=" + token, list + "&resourceVersion=999999999" + quick,
		list + "&watch=true&resourceVersion=2" + quick, list + "&watch=true&resourceVersion=999999999" + quick, watch + "&limit=1", watch + "&continue=" + token,
		watch + "&unknown=1", list + "&watch=x" + quick, list + "&watch=1" + quick, list + "&watch" + quick, list + "&watch=false",
		list + "&watch=true&sendInitialEvents=true" + quick, list + "&sendInitialEvents=true", list + "&%zz", list + ";a=b", list + "&a;b", list + ";", list + "%zz", list + strings.Repeat("&", 10001),
		configmaps.path(home) + "?shard%53elector=" + escaped, configmaps.path(home) + "?limit=5&%73hardSelector=" + escaped,
		configmaps.path(home) + "?shardSelector=" + escaped + "&shardSelector=", configmaps.path(home) + "?shardSelector=" + escaped + "&shardSelector=x",
		configmaps.path(home) + "?%zz&shardSelector=" + escaped, configmaps.path(home) + "?a;b&shardSelector=" + escaped,
		configmaps.path(home) + "/" + selects, configmaps.path(home) + "//" + selects,
		"/" + list, strings.Replace(list, "/api/v1/", "/api//v1/", 1), strings.Replace(list, "/api/v1/", "/api/v1/../v1/", 1),
		strings.Replace(list, "configmaps", "config%6Daps", 1), strings.Replace(list, "configmaps", "CONFIGMAPS", 1),
		"/api/v1/watch/namespaces/" + home + "/configmaps" + selects + quick, "/api/v1/watch/configmaps" + selects + quick + "&fieldSelector=metadata.namespace%3D" + home,
		"/api/v1/watch/namespaces/" + home + "/configmaps/" + name + selects + quick,
		"/api/v1/secrets" + selects, "/api/v1/secrets" + selects + "&watch=true" + quick, "/api/v1/secrets" + selects + "&resourceVersion=0",
		"/api/v1/events" + selects, "/api/v1/events" + selects + "&watch=true" + quick, "/apis/events.k8s.io/v1/events" + selects,
		"/apis/apiregistration.k8s.io/v1/apiservices" + selects, "/apis/none.test/v1/things" + selects, "/api/v1/things" + selects, "/api/v1/componentstatuses" + selects,
		"/api/v1/namespaces" + selects, "/api/v1/namespaces" + selects + "&watch=true" + quick,
	} {
		all = append(all, below("shards", cluster.Get(target)))
	}
	for _, header := range []http.Header{
		{"Origin": {w.off.proxy.URL}},
		{"Impersonate-User": {nobody}},
		{"Impersonate-Group": {"some"}},
		{"Authorization": {"Bearer x"}},
		{"Authorization": {"Basic eDp4"}},
		{"Accept": {"application/yaml"}},
		{"Accept": {"application/cbor"}},
		{"Accept": {"text/html"}},
		{"Accept": {"*/*"}},
		{"Accept": {"application/*"}},
		{"Accept": {strings.Replace(asTable, "v=v1", "v=v1beta1", 1)}},
		{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"}},
		{"Accept": {"application/json;as=x;g=y;v=z"}},
		{"Accept": {"application/json;profile=nopeer"}},
		{"Accept-Encoding": {"br, deflate"}},
		{"X-Http-Method-Override": {"DELETE"}},
		{"X-Remote-User": {"admin"}},
		{"Range": {"bytes=0-1"}},
		{"If-None-Match": {"*"}},
		{"Expect": {"100-continue"}},
		{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}},
		{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
	} {
		for _, target := range []string{list, watch} {
			r := cluster.Get(target)
			r.Header = header
			all = append(all, below("shards", r))
		}
	}
	for _, r := range []cluster.Request{
		{Method: http.MethodHead, Target: list},
		{Method: http.MethodOptions, Target: list},
		{Method: http.MethodGet, Target: list, Body: "{}"},
		{Method: http.MethodGet, Target: list, Body: "{}", Chunked: true},
		{Method: http.MethodPut, Target: list},
		{Method: "LIST", Target: list},
		{Method: http.MethodDelete, Target: list},
		{Method: http.MethodDelete, Target: list + "&resourceVersion=0"},
		{Method: http.MethodDelete, Target: list + "&dryRun=All"},
		{Method: http.MethodDelete, Target: list, Body: `{"kind":"DeleteOptions","apiVersion":"v1"}`},
		{Method: http.MethodDelete, Target: list + "&labelSelector=color%3Dred"},
		{Method: http.MethodDelete, Target: configmaps.path(home) + "?shardSelector=x"},
		{Method: http.MethodDelete, Target: configmaps.path(home) + "?shard%53elector=" + escaped},
		{Method: http.MethodDelete, Target: configmaps.path(home) + "?shardSelector=" + escaped + "&shardSelector="},
		{Method: http.MethodDelete, Target: list + "&%zz"},
		{Method: http.MethodDelete, Target: list + ";"},
		{Method: http.MethodDelete, Target: configmaps.path(home) + "?a;b&%zz&shardSelector=" + escaped},
		{Method: http.MethodDelete, Target: configmaps.path(home) + "?shardSelector=&shardSelector=" + escaped},
		{Method: http.MethodDelete, Target: list + "%zz"},
		{Method: http.MethodDelete, Target: list + strings.Repeat("&", 10001)},
		{Method: http.MethodDelete, Target: configmaps.path(home) + "/" + selects},
		{Method: http.MethodDelete, Target: "/" + list},
		{Method: http.MethodDelete, Target: strings.Replace(list, "configmaps", "config%6Daps", 1)},
		{Method: http.MethodDelete, Target: "/api/v1/namespaces/" + home + "/secrets" + selects},
	} {
		all = append(all, below("shards", r.With("Content-Type", inJSON)))
	}
	return all
}

// selects reports whether a request has a selector, or might have one in a malformed query.
func selects(target string) bool {
	_, query, _ := strings.Cut(target, "?")
	values, err := url.ParseQuery(query)
	return slices.ContainsFunc(values["shardSelector"], func(s string) bool { return s != "" }) || err != nil && strings.Contains(query, "Selector=")
}

// checkAudit checks that the apiserver without the feature gate was asked for no shard in the view.
// The proxy itself lists one object of a shard to see what the apiserver does.
func (w *world) checkAudit(tb testing.TB) {
	tb.Helper()
	by := map[string]int{}
	for _, r := range (&cluster.AuditLog{Path: w.audit}).NextT(tb) {
		if !selects(r.RequestURI) || r.Stage != "ResponseComplete" || !slices.Contains([]string{"list", "watch", "deletecollection"}, r.Verb) {
			continue
		}
		if by[r.UserAgent]++; r.UserAgent != direct && r.UserAgent != usual && (r.UserAgent != client.UserAgent || !strings.Contains(r.RequestURI, "limit=1&")) {
			tb.Errorf("%s %.600s of %s was forwarded", r.Verb, r.RequestURI, r.UserAgent)
		}
	}
	tb.Logf("requests for shards at the apiserver without them: %v", by)
}
