package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

const (
	// gatherInterval is the shortest time from the start of a gather to that of the next.
	gatherInterval = time.Second
	// pageTimeout limits the time to read a page, so slow readers keep the pages of at most eleven
	// gathers in memory. It is Prometheus' usual timeout for a scrape.
	pageTimeout = 10 * time.Second
	// An Accept longer than acceptMost bytes is not parsed. Prometheus' own has some 300.
	acceptMost = 1 << 10
)

// figures makes the pages of /metrics and /status. Clients may request them at any rate, and a
// gather of a large registry takes all processors. So all waiting requests share one gather and its
// pages, and gathers begin a second apart. A gather serves the requests that came before it began.
// One request at a time gathers and renders. The others stop waiting when their connections end.
type figures struct {
	from    prometheus.Gatherer
	busy    chan struct{} // has an element while a request gathers or renders
	last    gathered      // busy guards it
	waiting atomic.Int64  // requests in page
}

type gathered struct {
	began    time.Time
	families []*dto.MetricFamily
	err      error
	pages    map[string][]byte // by form; nil before the gather has ended, and once nobody waits
}

func (g *gathered) Gather() ([]*dto.MetricFamily, error) { return g.families, g.err }

// page returns a page of a gather that began after the call. form names what render returns.
func (f *figures) page(
	ctx context.Context, form string, render func(*gathered) ([]byte, error),
) ([]byte, error) {
	asked := time.Now()
	f.waiting.Add(1)
	select {
	case f.busy <- struct{}{}:
	case <-ctx.Done():
		f.waiting.Add(-1)
		return nil, ctx.Err()
	}
	defer func() {
		if f.waiting.Add(-1) == 0 { // nobody else may use the gather
			f.last = gathered{began: f.last.began}
		}
		<-f.busy
	}()
	if f.last.pages == nil || f.last.began.Before(asked) {
		select {
		case <-time.After(time.Until(f.last.began.Add(gatherInterval))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		f.last = gathered{began: time.Now()}
		f.last.families, f.last.err = f.from.Gather()
		f.last.pages = map[string][]byte{}
	}
	if page := f.last.pages[form]; page != nil {
		return page, nil
	}
	page, err := render(&f.last)
	if err == nil {
		f.last.pages[form] = page
	}
	return page, err
}

func (f *figures) serve(
	w http.ResponseWriter, r *http.Request, form string, render func(*gathered) ([]byte, error),
) {
	page, err := f.page(r.Context(), form, render)
	if err != nil {
		w.Header().Del("Content-Encoding")
		http.Error(w, err.Error(), http.StatusInternalServerError) // the client may be gone
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	// A closed connection has no deadline.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageTimeout))
	_, _ = w.Write(page)
}

// serveMetrics serves the metrics as text or protobuf. Only protobuf has native histograms.
func (f *figures) serveMetrics(w http.ResponseWriter, r *http.Request) {
	format, form := expfmt.NewFormat(expfmt.TypeTextPlain), "text"
	if accept := r.Header.Get("Accept"); len(accept) <= acceptMost {
		protobuf := expfmt.NewFormat(expfmt.TypeProtoDelim)
		wanted := expfmt.NegotiateAccept(r.Header, format, protobuf)
		if wanted.FormatType() == expfmt.TypeProtoDelim {
			format, form = protobuf, "protobuf"
		}
	}
	h := w.Header()
	h.Set("Content-Type", string(format))
	h["Vary"] = []string{"Accept", "Accept-Encoding"}
	zipped := wire.AcceptsGzip(r.Header.Get("Accept-Encoding"))
	if zipped {
		h.Set("Content-Encoding", "gzip")
		form += ", gzip"
	}
	f.serve(w, r, form, func(g *gathered) ([]byte, error) {
		page, err := g.encode(format)
		if err == nil && zipped {
			page = wire.GzipBody(page)
		}
		return page, err
	})
}

func (g *gathered) encode(format expfmt.Format) ([]byte, error) {
	if g.err != nil {
		return nil, g.err
	}
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, format)
	for _, family := range g.families {
		if err := encoder.Encode(family); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

func (f *figures) serveStatus(status func(prometheus.Gatherer) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		f.serve(w, r, "status", func(g *gathered) ([]byte, error) {
			report, err := status(g)
			if err != nil {
				return nil, err
			}
			page, err := json.MarshalIndent(report, "", "  ")
			return append(page, '\n'), err
		})
	}
}
