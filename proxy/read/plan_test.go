package read

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// shown prints a plan: what is asked, from which state, and in which forms.
func shown(p *plan) string {
	var b strings.Builder
	kind := map[wire.Read]string{wire.Get: "get", wire.List: "list", wire.Watch: "watch"}[p.Kind]
	fmt.Fprintf(&b, "%s %s", kind, p.GVR.Resource)
	for name, value := range map[string]string{" in ": p.Namespace, " named ": p.Name} {
		if value != "" {
			b.WriteString(name + value)
		}
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
	for name, holds := range map[string]bool{", gzip": p.Gzip, ", limits the age": p.LimitsAge} {
		if holds {
			b.WriteString(name)
		}
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
		p, err := parse(req, exchange.ParseRoute(req.Method, req.Path))
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
