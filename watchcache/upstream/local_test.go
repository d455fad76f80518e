package upstream

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Only resources that the apiserver itself serves are cached. If the proxy may not read the
// APIServices, it needs a different proof.
func TestOnlyLocalResourcesAreCached(t *testing.T) {
	const (
		absent     = `{"kind":"Status","status":"Failure","reason":"NotFound","code":404}`
		forbidden  = `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403}`
		local      = `{"kind":"APIService","spec":{}}`
		elsewhere  = `{"kind":"APIService","spec":{"service":{"name":"metrics"}}}`
		defined    = `{"metadata":{"uid":"one","generation":1},"spec":{"versions":[{"name":"v1","served":true}]}}`
		unserved   = `{"metadata":{"uid":"one","generation":1},"spec":{"versions":[{"name":"v1"},{"name":"v2","served":true}]}}`
		aggregator = `,{"name":"apiregistration.k8s.io","versions":[{"version":"v1"}]}`
		appsList   = `{"kind":"WidgetList","apiVersion":"apps/v1","metadata":{"resourceVersion":"100"},"items":[]}`
		oddList    = `{"apiVersion":"example.com/v1","items":[],"kind":"WidgetList","metadata":{"resourceVersion":"100"}}`
		typedList  = `{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"100"},"items":[]}`
	)
	builtin := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "widgets"}
	for name, tc := range map[string]struct {
		gvr                             schema.GroupVersionResource
		aggregator, apiservice, crd     string
		list                            string
		aggregated, cached, says, later bool
	}{
		"local":                               {apiservice: local, cached: true},
		"aggregated":                          {apiservice: elsewhere, crd: defined},
		"aggregated and welcome":              {apiservice: elsewhere, aggregated: true, cached: true},
		"aggregated and welcome, typed":       {apiservice: elsewhere, aggregated: true, list: typedList, cached: true},
		"aggregated and welcome, odd":         {apiservice: elsewhere, aggregated: true, list: oddList},
		"aggregated and welcome, null":        {apiservice: elsewhere, aggregated: true, list: strings.Replace(typedList, "[]", "null", 1)},
		"aggregated and welcome, selfLink":    {apiservice: elsewhere, aggregated: true, list: strings.Replace(typedList, `"metadata":{`, `"metadata":{"selfLink":"a",`, 1)},
		"no aggregator":                       {aggregator: "-", apiservice: absent, cached: true},
		"no aggregator, may not look":         {aggregator: "-", apiservice: forbidden, crd: forbidden, cached: true},
		"may not look":                        {apiservice: forbidden, says: true},
		"may not look at anything":            {apiservice: forbidden, crd: forbidden, says: true},
		"may not look, welcome":               {apiservice: forbidden, aggregated: true, cached: true},
		"may not look, defined":               {apiservice: forbidden, crd: defined, cached: true, says: true},
		"may not look, another version":       {apiservice: forbidden, crd: unserved, says: true},
		"may not look, defined but not shown": {apiservice: forbidden, crd: defined, list: typedList, says: true},
		"may not look, built in":              {gvr: builtin, apiservice: forbidden, list: appsList, cached: true, says: true},
		"not registered":                      {apiservice: absent, later: true},
		"not registered, defined":             {apiservice: absent, crd: defined, cached: true},
		"not registered, built in":            {gvr: builtin, apiservice: absent, list: appsList, cached: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.gvr.Empty() {
				tc.gvr = widgets
			}
			status := func(body string) (*http.Response, error) {
				for code, answer := range map[int]string{404: absent, 403: forbidden} {
					if body == answer || body == "" && code == 404 {
						return reply(code, answer), nil
					}
				}
				return reply(200, body), nil
			}
			widget := widgetUpstream(func(*http.Request) (*http.Response, error) { return status(tc.crd) })
			upstream := roundTrip(func(req *http.Request) (*http.Response, error) {
				path := req.URL.Path
				switch {
				case path == "/apis":
					groups := `{"groups":[{"name":"example.com","versions":[{"version":"v1"}]},{"name":"apps","versions":[{"version":"v1"}]}`
					if tc.aggregator == "" {
						groups += aggregator
					}
					return reply(200, groups+`]}`), nil
				case strings.Contains(path, "/apiservices/"):
					if !strings.HasSuffix(path, "/"+tc.gvr.Version+"."+tc.gvr.Group) {
						t.Errorf("asked for %s", path)
					}
					return status(tc.apiservice)
				case path == "/apis/apps/v1":
					req = req.Clone(req.Context())
					req.URL.Path = "/apis/example.com/v1"
				case strings.Contains(path, client.NoSuchNamespace) && tc.list != "":
					return reply(200, tc.list), nil
				}
				return widget(req)
			})
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zap.WarnLevel)
				feeds := newFeeds(t, upstream, prometheus.NewRegistry(), feed.Options{Resources: map[schema.GroupResource]feed.ResourceOptions{
					tc.gvr.GroupResource(): {Aggregated: tc.aggregated},
				}}, zap.New(core))
				defer feeds.Stop()
				_, err := feeds.Open(t.Context(), tc.gvr, object.Want{}, object.JSON, 0)
				switch {
				case tc.cached && (errors.Is(err, discovery.ErrNotCacheable) || errors.Is(err, discovery.ErrNotServed)), tc.later && !errors.Is(err, discovery.ErrNotServed), !tc.cached && !tc.later && !errors.Is(err, discovery.ErrNotCacheable):
					t.Errorf("got %v", err)
				}
				said := logs.FilterMessageSnippet("apiservices.apiregistration.k8s.io").Len()
				if _, again := feeds.Open(t.Context(), tc.gvr, object.Want{}, object.Protobuf, 0); said > 1 || said == 1 != tc.says || logs.FilterMessageSnippet("apiservices").Len() != said {
					t.Errorf("the log says %d times what right is missing: %v", said, again)
				}
			})
		})
	}
}
