package admin

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/watchproxy/watchproxy/bench/conntest"
)

// slowGatherer needs a time for each gather.
type slowGatherer struct {
	prometheus.Gatherer
	took            time.Duration
	gathers, atOnce atomic.Int64
	most            atomic.Int64 // of atOnce
}

// Gather implements prometheus.Gatherer.
func (g *slowGatherer) Gather() ([]*dto.MetricFamily, error) {
	g.gathers.Add(1)
	g.most.Store(max(g.most.Load(), g.atOnce.Add(1)))
	time.Sleep(g.took)
	g.atOnce.Add(-1)
	return g.Gatherer.Gather()
}

// pageSize is the least size of the pages of a flooded server.
const pageSize = 100 << 10

// largeStatus gathers the metrics, as the real status does.
func largeStatus(figures prometheus.Gatherer) (any, error) {
	_, err := figures.Gather()
	return strings.Repeat("x", pageSize), err
}

func noStatus(prometheus.Gatherer) (any, error) { return nil, errors.New("no figures") }

// flooded is an admin server in memory.
type flooded struct {
	*Admin
	gatherer *slowGatherer
	listener *conntest.Listener
	handlers atomic.Int64 // that run
}

// flood runs do with an admin server whose gathers need a time.
func flood(t *testing.T, took time.Duration, do func(*flooded)) {
	t.Helper()
	registry := prometheus.NewRegistry()
	f := &flooded{
		gatherer: &slowGatherer{Gatherer: registry, took: took},
		listener: conntest.Listen(4 << 10),
	}
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{
		Name: "large_total", Help: strings.Repeat("x", pageSize),
	}))
	f.Admin = New(f.gatherer, Options{Status: largeStatus, Everybody: true})
	f.Ready()
	server := f.Server()
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.handlers.Add(1)
		defer f.handlers.Add(-1)
		handler.ServeHTTP(w, r)
	})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(bounded(f.listener)) }()
	do(f)
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	time.Sleep(2 * took) // a gather has no context
	if n := f.figures.waiting.Load(); n != 0 {
		t.Errorf("%d requests count as waiting", n)
	}
}

// ask sends a request on a new connection.
func (f *flooded) ask(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := f.listener.Dial()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") // may be closed
	return c
}

// probe asks /readyz, which never waits.
func (f *flooded) probe(t *testing.T) {
	t.Helper()
	began := time.Now()
	c := f.ask(t, "/readyz")
	defer c.Close()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("a probe is not answered: %v", err)
		return
	}
	resp.Body.Close()
	if took := time.Since(began); resp.StatusCode != http.StatusOK || took != 0 {
		t.Errorf("a probe gets %s after %v", resp.Status, took)
	}
}

// However many scrapers ask, and however often, one gather at a time serves all who wait for it,
// and at most one begins in a second. /status is made of the same gathers. Probes do not wait.
func TestScrapersShareGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took, lasts = 100 * time.Millisecond, 10 * time.Second
		flood(t, took, func(f *flooded) {
			ends := time.Now().Add(lasts)
			var scrapers sync.WaitGroup
			for i := range connections / 2 {
				scrapers.Go(func() {
					path := []string{"/metrics", "/status"}[i%2]
					for time.Now().Before(ends) {
						c := f.ask(t, path)
						asked := time.Now()
						resp, err := http.ReadResponse(bufio.NewReader(c), nil)
						if err != nil {
							t.Error(err)
							return
						}
						body, _ := io.ReadAll(resp.Body)
						c.Close()
						waited := time.Since(asked)
						if resp.StatusCode != http.StatusOK || waited > 2*time.Second {
							t.Errorf("%s: %s after %v: %s", path, resp.Status, waited, body)
						}
					}
				})
			}
			for time.Now().Before(ends) {
				f.probe(t)
				time.Sleep(took / 3)
			}
			scrapers.Wait()
			most := int64(lasts/time.Second) + 2
			if n := f.gatherer.gathers.Load(); n > most || f.gatherer.most.Load() > 1 {
				t.Errorf("%d gathers in %v, %d at once", n, lasts, f.gatherer.most.Load())
			}
		})
	})
}

// The handler of a closed connection ends, so there are as many handlers as connections, and one
// more that gathers.
func TestHandlersEndWithTheirConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flood(t, time.Minute, func(f *flooded) {
			const scrapers = 500
			for i := range scrapers {
				c := f.ask(t, []string{"/metrics", "/status"}[i%2])
				defer c.Close()
				synctest.Wait()
				// The server stops reading once it has a byte of the next request.
				_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
			}
			synctest.Wait()
			f.probe(t)
			if n := f.handlers.Load(); n > connections+1 {
				t.Errorf("%d requests have %d handlers", scrapers, n)
			}
			if n := f.gatherer.most.Load(); n != 1 {
				t.Errorf("%d gathers at once", n)
			}
		})
	})
}

// Beyond a number of handlers, further requests get 503 at once, except probes.
func TestHandlersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		gatherer := &slowGatherer{Gatherer: registry, took: time.Minute}
		options := Options{Status: largeStatus, Everybody: true}
		a := New(gatherer, options)
		a.Ready()
		get := func(path string) *httptest.ResponseRecorder {
			return visit(t, a, loopback, false, http.MethodGet, path, "")
		}
		var refused atomic.Int64
		var waiting sync.WaitGroup
		const beyond = 9
		for i := range handlersMost + beyond {
			waiting.Go(func() {
				w := get([]string{"/metrics", "/status"}[i%2])
				if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") != "" {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := refused.Load(); n != beyond {
			t.Errorf("%d requests are refused, want %d", n, beyond)
		}
		for _, path := range []string{"/livez", "/readyz", "/readyz/ping", "/livez?verbose"} {
			if w := get(path); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		for _, path := range []string{"/", "/page.js", profiles + "heap"} {
			if w := get(path); w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		waiting.Wait()
		if w := get("/metrics"); w.Code != http.StatusOK {
			t.Errorf("after the flood: %d %s", w.Code, w.Body)
		}
	})
}

// A client that does not read its page loses its connection soon, so old pages do not stay in
// memory.
func TestUnreadPagesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flood(t, 0, func(f *flooded) {
			for _, path := range []string{"/metrics", "/status"} {
				c := f.ask(t, path)
				time.Sleep(time.Second + pageTimeout/2)
				if n := f.handlers.Load(); n != 1 {
					t.Errorf("%s: %d handlers write", path, n)
				}
				time.Sleep(time.Second + pageTimeout/2)
				if n := f.handlers.Load(); n != 0 {
					t.Errorf("%s: the handler still writes", path)
				}
				c.Close()
			}
		})
	})
}

// Each form of a page has its type and encoding. An Accept that is too long for a scraper's is not
// parsed. A page shows what had happened when it was asked for, and nobody holds it afterwards.
func TestMetricsForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		events := prometheus.NewCounter(prometheus.CounterOpts{Name: "events_total", Help: "Events."})
		registry.MustRegister(events)
		a := New(registry, Options{Everybody: true})
		const (
			text     = "text/plain; version=0.0.4; charset=utf-8"
			protobuf = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; " +
				"encoding=delimited"
			prometheus3 = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;" +
				"encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5," +
				"text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
		)
		for name, test := range map[string]struct {
			accept, encoding string
			want             string
			compressed       bool
		}{
			"none":               {"", "", text, false},
			"curl":               {"*/*", "deflate, gzip, br", text, true},
			"other":              {"application/json", "zstd", text, false},
			"prometheus":         {prometheus3, "gzip", protobuf, true},
			"prometheus, plain":  {prometheus3, "", protobuf, false},
			"text is preferred":  {"text/plain;version=0.0.4," + prometheus3, "gzip", text, true},
			"more than a header": {strings.Repeat("*/*;a=b,", acceptMost) + prometheus3, "", text, false},
		} {
			events.Inc()
			w := visit(t, a, loopback, false, http.MethodGet, "/metrics", "",
				"Accept", test.accept, "Accept-Encoding", test.encoding)
			h, body := w.Header(), io.Reader(w.Body)
			if got := h.Get("Content-Type"); w.Code != http.StatusOK || got != test.want {
				t.Errorf("%s: %d %s", name, w.Code, got)
			}
			if got := h.Get("Content-Encoding") == "gzip"; got != test.compressed {
				t.Errorf("%s: compressed: %t", name, got)
				continue
			}
			if vary := h.Values("Vary"); strings.Join(vary, ", ") != "Accept, Accept-Encoding" {
				t.Errorf("%s: Vary: %q", name, vary)
			}
			if test.compressed {
				unzipped, err := gzip.NewReader(body)
				if err != nil {
					t.Fatal(err)
				}
				body = unzipped
			}
			page, err := io.ReadAll(body)
			if err != nil {
				t.Fatal(err)
			}
			var shown dto.Metric
			if err := events.Write(&shown); err != nil {
				t.Fatal(err)
			}
			line := "\nevents_total " + string('0'+rune(shown.GetCounter().GetValue())) + "\n"
			if test.want == text && !bytes.Contains(page, []byte(line)) {
				t.Errorf("%s: the page does not have %q", name, line)
			}
		}
		if a.figures.last.pages != nil {
			t.Error("the last page is held")
		}
	})
}
