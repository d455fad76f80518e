package read

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// After a relist a watch continues. It shows deletions at the last resourceVersion before the
// relist. The feed of another proxy must not continue, because it would keep these events for its
// own clients. So it must list.
func TestWatchAcrossARelist(t *testing.T) {
	const deleted = `{"type":"DELETED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c-%06d","namespace":"a","uid":"u","resourceVersion":"3"}}}` + "\n"
	const expired = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
		`"message":"too old resource version: 3 (20)","reason":"Expired","code":410}}` + "\n"
	for agent, want := range map[string]string{
		"kubelet/v1.36.3": fmt.Sprintf(deleted+deleted, 0, 1),
		feedAgent:         expired,
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := pageOf(t, 2, 0)
			r.Header.Set("User-Agent", agent)
			r.Kind, r.Watch, r.RV, r.WatchSeconds = wire.Watch, true, 3, 1
			rd := New(Config{Limits: unlimited{}, Metrics: uncounted{}, Life: exchange.NewLife()}, Options{})
			resp, err := rd.watch(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.cache.Writer().Replace(nil, 20, time.Now()); err != nil {
				t.Fatal(err)
			}
			var written bytes.Buffer
			resp.Body.(exchange.Stream).Run(t.Context(), &exchange.ChunkWriter{To: &written})
			if got := written.String(); !strings.Contains(got, want) || strings.Contains(got, "ERROR") != (agent == feedAgent) {
				t.Errorf("%s got %q instead of %q", agent, got, want)
			}
		})
	}
}

// uncounted are Metrics whose counts nobody reads.
type uncounted struct{ Metrics }

// Lag implements Metrics.
func (uncounted) Lag(exchange.Route) *watch.Lag { return new(watch.Lag) }

// unlimited is a Limiter that refuses nothing.
type unlimited struct{ Limiter }

// AdmitWatch implements Limiter.
func (unlimited) AdmitWatch(*exchange.Request) (done func(), refusal *exchange.Response) {
	return func() {}, nil
}
