package upstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

// datedUpstream adds Dates and Tables without rows to a fake upstream.
type datedUpstream struct {
	*fakeUpstream
	ahead atomic.Int64 // of its clock
	wide  atomic.Bool  // whether Tables have another column
	found atomic.Value // the rows that a probe finds; "[]" if not set
}

// RoundTrip implements http.RoundTripper.
func (d *datedUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := d.fakeUpstream.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if strings.Contains(req.Header.Get("Accept"), "as=Table") {
		const body = `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"100"},"columnDefinitions":[{"name":"Name"}%s],"rows":%s}`
		columns, rows := "", "[]"
		if d.wide.Load() {
			columns = `,{"name":"Age"}`
		}
		_ = resp.Body.Close()
		if found, ok := d.found.Load().(string); ok && strings.Contains(req.URL.Path, client.NoSuchNamespace) {
			rows = found
		}
		resp = reply(200, fmt.Sprintf(body, columns, rows))
		if req.URL.Query().Get("watch") != "" {
			bookmark := fmt.Sprintf(body, columns, `[{"cells":[""],"object":`+bookmarkJSON(100, true)+`}]`)
			var cut chan struct{}
			d.locked(func() { cut = d.mu.cut })
			w := (*io.PipeWriter)(nil)
			resp, w = piped(req)
			go func() {
				_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":`+bookmark+"}\n")
				select {
				case <-cut:
				case <-req.Context().Done():
				}
				_ = w.Close()
			}()
		}
	}
	resp.Header.Set("Date", time.Now().Add(time.Duration(d.ahead.Load())).UTC().Format(http.TimeFormat))
	return resp, nil
}

// While the clocks differ, no feed of rows starts. A difference that appears or ends later is
// noticed within seconds, even if no client sends requests.
func TestClockIsProved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datedUpstream{fakeUpstream: newFake()}
		d.ahead.Store(int64(4 * time.Second))
		feeds := start(t, d)
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Table, 0); !errors.Is(err, discovery.ErrNotCacheable) {
			t.Errorf("a feed started with a wrong clock: %v", err)
		}
		d.ahead.Store(0)
		time.Sleep(time.Minute + time.Second)
		f, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Table, 0)
		if err != nil {
			t.Fatal(err)
		}
		clock := f.Cache().Resource().Columns.Clock
		for _, ahead := range []time.Duration{0, -4 * time.Second, time.Second, time.Hour, 0} {
			d.ahead.Store(int64(ahead))
			time.Sleep(2 * proofAge)
			if _, right := clock.Now(); right != (ahead.Abs() <= object.ClockSkew) {
				t.Errorf("%v ahead: right is %v", ahead, right)
			}
		}
		before := d.count("probe")
		time.Sleep(10 * proofAge)
		if n := d.count("probe") - before; n > 10 {
			t.Errorf("%d probes in %v", n, 10*proofAge)
		}
	})
}
