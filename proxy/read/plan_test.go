package read

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// shown prints a plan: what is asked, from which state, and in which forms.
func shown(p *plan) string {
	var b strings.Builder
	kind := map[wire.Read]string{wire.Get: "get", wire.List: "list", wire.Watch: "watch"}[p.Kind]
	fmt.Fprintf(&b, "%s %s", kind, p.GVR.Resource)
	if p.Namespace != "" {
		b.WriteString(" in " + p.Namespace)
	}
	if p.Name != "" {
		b.WriteString(" named " + p.Name)
	}
	switch {
	case p.mostRecentGet() || p.MostRecent():
		b.WriteString(", most recent")
	case p.Token != "":
		b.WriteString(", a further page")
	default:
		fmt.Fprintf(&b, ", at %s%d", p.Match, p.RV)
	}
	for _, c := range p.Choices {
		switch {
		case c.Table:
			b.WriteString(", Table")
		case c.Partial:
			b.WriteString(", metadata")
		default:
			b.WriteString(", objects")
		}
		if c.MediaType == wire.Protobuf {
			b.WriteString(" in protobuf")
		}
	}
	if p.Gzip {
		b.WriteString(", gzip")
	}
	if p.LimitsAge {
		b.WriteString(", limits the age")
	}
	return b.String()
}

// A plan says what a read asks for.
func TestPlans(t *testing.T) {
	const pods = "/api/v1/namespaces/a/pods"
	for _, c := range []struct{ target, header, want string }{
		{pods, "", "list pods in a, most recent, objects"},
		{pods + "?limit=5", "Accept-Encoding: gzip", "list pods in a, most recent, objects, gzip"},
		{pods + "?continue=x", "", "list pods in a, a further page, objects"},
		{pods + "?resourceVersion=7&resourceVersionMatch=Exact", "", "list pods in a, at Exact7, objects"},
		{
			pods + "?resourceVersion=0", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
			"list pods in a, at 0, Table",
		},
		{
			pods + "?watch=1&resourceVersion=7", "Accept: application/vnd.kubernetes.protobuf",
			"watch pods in a, at 7, objects in protobuf",
		},
		{
			pods + "?resourceVersion=0", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
			"list pods in a, at 0, metadata",
		},
		{pods + "/p", "Cache-Control: no-cache", "get pods in a named p, most recent, objects, limits the age"},
		{pods + "?limit=x", "", string(Parameters)},
	} {
		req := &exchange.Request{Method: http.MethodGet, Target: c.target, Header: http.Header{}}
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			req.Header.Set(name, value)
		}
		req.SplitTarget()
		req.Route = exchange.ParseRoute(req.Method, req.Path)
		p, err := parse(req)
		p.negotiate(req, req.Header.Get("Accept"))
		got := shown(&p)
		if errors.Is(err, exchange.ErrDoubtful) {
			got = string(Parameters)
		}
		if got != c.want {
			t.Errorf("%s with %q:\n%s, want\n%s", c.target, c.header, got, c.want)
		}
	}
}

// noCaches are feeds without any cache.
type noCaches struct{ Feeds }

func (noCaches) Caches(schema.GroupVersionResource, object.Want) bool { return false }

// A watch that would resume in a view of namespaces is refused, but not if upstream has to answer all
// such reads: of a resource without a cache, or with parameters that only upstream understands.
func TestResumedWatchesAreRefused(t *testing.T) {
	const resumes = "/api/v1/namespaces?watch=1&resourceVersion=7"
	for _, c := range []struct {
		target string
		feeds  Feeds
		want   Reason // none if it is refused
	}{
		{resumes, noCaches{}, Uncached},
		{resumes + "&timeoutSeconds=x", &stillFeeds{}, Parameters},
		{resumes + "&limit=5", &stillFeeds{}, ""},
		{"/api/v1/namespaces?watch=1&resourceVersion=0", noCaches{}, Uncached},
	} {
		req := &exchange.Request{
			Method: http.MethodGet, Target: c.target, Header: http.Header{},
			Identity: &access.Caller{Token: true},
		}
		req.SplitTarget()
		rd := New(Config{Feeds: c.feeds, Log: zap.NewNop()}, Options{})
		req.Route = exchange.ParseRoute(req.Method, req.Path)
		req.Route.View = &exchange.View{Name: "mine", Allowed: true}
		got := rd.Answer(t.Context(), req)
		refused := got.Response != nil && got.Response.Status == http.StatusMethodNotAllowed
		if got.Reason != c.want || refused != (c.want == "") {
			t.Errorf("%s: %q, refused: %t; want %q", c.target, got.Reason, refused, c.want)
		}
	}
}
