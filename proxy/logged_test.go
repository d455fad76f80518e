package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// loggedOptions write every request to the access log.
func loggedOptions() Options {
	return Options{Fixed: Fixed{AnyHost: true}, Options: read.Options{SyncTimeout: time.Minute}, Limits: testLimits(), AccessLog: 1}
}

// No log line at any level contains a token, or the value of a parameter that may be secret. The
// errors of malformed requests would quote them.
func TestLogsHaveNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.DebugLevel)
		_, address := serveLogged(t, oneFeed{}, func(http.ResponseWriter, *http.Request) {}, loggedOptions(), prometheus.NewRegistry(), zap.New(core))
		const secret = "topsecret"
		for _, request := range []string{
			"GET /x\r\nHost: localhost\r\nAuthorization: Bearer topsecret\r\n\r\n",
			"GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer topsecret\x01\r\n\r\n",
			"GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer topsecret\r\n\r\n",
			"GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer topsecret\r\nContent-Length: x\r\n\r\n",
			"topsecret\r\n\r\n",
			"GET /api/v1/namespaces/a/pods/p/exec%zz?command=topsecret HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
			"GET foo?command=topsecret HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
			"GET http://localhost/foo?command=topsecret HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
			"GET /api/v1/namespaces/a/pods/p/exec?command=topsecret HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
		} {
			before := logs.Len()
			c := dial(t, address)
			send(t, c, request)
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
			waitFor(t, fmt.Sprintf("a line about %q", request), func() bool { return logs.Len() > before })
		}
		for _, entry := range logs.All() {
			if line := fmt.Sprint(entry.Message, entry.ContextMap()); strings.Contains(line, secret) {
				t.Error(line)
			}
		}
	})
}

// A client that leaves while its request is forwarded is not a failure of the proxy or of upstream:
// metrics, audit log and log say that the client has left.
func TestClientLeavesForward(t *testing.T) {
	for protocol, method := range map[string]string{"http/1.1": http.MethodGet, "h2": http.MethodPost} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zapcore.WarnLevel)
				registry, arrived := prometheus.NewRegistry(), make(chan struct{}, 1)
				auditor, log := auditing(t, "- level: Metadata\n  omitStages: [RequestReceived]\n", true)
				options := loggedOptions()
				options.Audit, options.TLS = auditor, selfSigned()
				_, address := serveLogged(t, oneFeed{}, func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					arrived <- struct{}{}
					<-r.Context().Done()
				}, options, registry, zap.New(core))
				ctx, leave := context.WithCancel(t.Context())
				var leaving sync.WaitGroup
				defer leaving.Wait()
				leaving.Go(func() {
					<-arrived
					leave()
				})
				// Go's client says by TLS that it leaves. It may still get the response to that.
				if code, err := clientTo(t, address, protocol).send(ctx, "", method, podsPath, strings.NewReader("{}")); err == nil && code != http.StatusGatewayTimeout {
					t.Fatalf("got %d", code)
				}
				waitFor(t, "the audit event", func() bool { return len(eventsIn(t, log)) > 0 })
				e := eventsIn(t, log)[0]
				if e.ResponseStatus == nil || strings.Contains(e.ResponseStatus.Message, "upstream") || e.Stage != auditv1.StageResponseComplete {
					t.Errorf("audited as %s, %v", e.Stage, e.ResponseStatus)
				}
				waitFor(t, "the count", func() bool { return codeCounts(t, registry)["499"] == 1 })
				if counts := codeCounts(t, registry); len(counts) != 1 {
					t.Errorf("counted as %v", counts)
				}
				for _, entry := range logs.All() {
					t.Error(entry.Message, entry.ContextMap())
				}
			})
		})
	}
}

// codeCounts returns the number of requests by code.
func codeCounts(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "watchproxy_requests_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "code" && m.GetCounter().GetValue() > 0 {
					counts[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return counts
}

// The audit log has no decision about a read for which upstream made none.
func TestNobodyDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		auditor, log := auditing(t, "- level: Metadata\n  omitStages: [RequestReceived]\n", false)
		options := loggedOptions()
		options.Audit, options.TLS, options.Access = auditor, selfSigned(), judging(t)
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, options)
		const decision = "authorization.k8s.io/decision"
		for user, want := range map[string]string{"reader": "allow", "stranger": "forbid", "other": ""} {
			before := len(eventsIn(t, log))
			_ = clientTo(t, address, "h2").open(t, "/api/v1/namespaces/a/configmaps?resourceVersion=0", credentials(user)...)
			waitFor(t, "the audit event", func() bool { return len(eventsIn(t, log)) > before })
			if e := eventsIn(t, log)[before]; e.Annotations[decision] != want {
				t.Errorf("%s: decision %q, want %q", user, e.Annotations[decision], want)
			}
		}
	})
}
