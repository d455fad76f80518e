//go:build !race

package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// A request of a stranger costs the same whatever its path, query and headers are, also with an
// audit log. Over HTTP/2, one byte may refer to four kilobytes of them. Allocations stand for the
// cost, because each parsed part needs some.
func TestStrangersCost(t *testing.T) {
	auditor, _ := auditing(t, "- level: Metadata\n", false)
	for _, audits := range []*audit.Auditor{nil, auditor} {
		options := testOptions()
		options.Access, options.Audit = judging(t), audits
		s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, options)
		cost := func(target, accept string) float64 {
			return testing.AllocsPerRun(10, func() {
				req := &exchange.Request{Method: http.MethodGet, Target: target, Host: "localhost", Conn: noConn{}, Header: http.Header{}}
				req.Header["Accept"], req.Header["X-Forwarded-For"] = []string{accept}, []string{accept}
				req.SplitTarget()
				if resp := s.Handle(t.Context(), req); resp.Status != http.StatusUnauthorized {
					t.Errorf("%.50s…: %d", target, resp.Status)
				}
			})
		}
		const path, size, more = "/api/v1/pods", 4000, 60
		least := cost(path, "application/json")
		for _, part := range []string{"*/*;as=x,", ",", "a/b,", ";a=b", "application/yaml;a;", "1.1.1.1,"} {
			if got := cost(path, strings.Repeat(part, size/len(part))); got > least+more {
				t.Errorf("header of %q: %v allocations instead of %v", part, got, least)
			}
		}
		for _, part := range []string{"a=b&", "&", "pretty&", "watch=%zz&", "fieldSelector=a%3Db&", "labelSelector=a,"} {
			if got := cost(path+"?"+strings.Repeat(part, size/len(part)), "*/*"); got > least+more {
				t.Errorf("query of %q: %v allocations instead of %v", part, got, least)
			}
		}
		for _, part := range []string{"/", "/a", "/%2f", "/api/v1", "/namespaces"} {
			if got := cost("/api/v1/pods"+strings.Repeat(part, size/len(part)), "*/*"); got > least+more {
				t.Errorf("path of %q: %v allocations instead of %v", part, got, least)
			}
		}
		t.Logf("%v allocations", least)
	}
}
