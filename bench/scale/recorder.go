package main

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// call is a kind of request, in the terms of the apiserver's metrics.
type call struct{ verb, resource, subresource, scope string }

// recorder has what the clients of a road have measured since the last take.
type recorder struct {
	watches atomic.Int64 // open

	mu struct {
		sync.Mutex
		measured
	}
}

// measured is what clients measure. Times are in ms.
type measured struct {
	calls map[call][]float64   // from sending a request to the last byte of its response
	codes map[string]int       // responses 429 and 5xx, and requests without a response
	times map[string][]float64 // of syncs and of commands, by name
	reads []read
}

// read is a client's reading of an event, decoded.
type read struct {
	revision string
	at       time.Time
}

func newMeasured() measured {
	return measured{calls: map[call][]float64{}, codes: map[string]int{}, times: map[string][]float64{}}
}

func newRecorder() *recorder {
	r := &recorder{}
	r.mu.measured = newMeasured()
	return r
}

func (r *recorder) take() measured {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mu.measured
	r.mu.measured = newMeasured()
	return m
}

// event records that a client has read an event.
func (r *recorder) event(revision string) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.reads = append(r.mu.reads, read{revision, now})
}

// took records how long something has taken.
func (r *recorder) took(what string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.times[what] = append(r.mu.times[what], ms(d))
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// wrap measures a client's requests.
func (r *recorder) wrap(next http.RoundTripper) http.RoundTripper {
	return measuring(func(req *http.Request) (*http.Response, error) {
		began := time.Now()
		resp, err := next.RoundTrip(req)
		if err != nil {
			if req.Context().Err() == nil {
				r.code("no response")
			}
			return nil, err
		}
		c := callOf(req)
		switch {
		case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError:
			r.code(strconv.Itoa(resp.StatusCode))
		case resp.StatusCode >= http.StatusMultipleChoices:
		case c.verb == "WATCH":
			r.watches.Add(1)
			resp.Body = &body{ReadCloser: resp.Body, ended: func() { r.watches.Add(-1) }}
		default:
			resp.Body = &body{ReadCloser: resp.Body, ended: func() { r.call(c, time.Since(began)) }}
		}
		return resp, nil
	})
}

func (r *recorder) code(code string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.codes[code]++
}

func (r *recorder) call(c call, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.calls[c] = append(r.mu.calls[c], ms(took))
}

type measuring func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (m measuring) RoundTrip(r *http.Request) (*http.Response, error) { return m(r) }

// body calls ended once, at the last byte or when the client closes the body.
type body struct {
	io.ReadCloser
	ended func()
	once  sync.Once
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(b.ended)
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.once.Do(b.ended)
	return b.ReadCloser.Close()
}

var paths = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// callOf names a request as the apiserver's metrics do: a verb of HTTP, or LIST or WATCH; the scope
// is one object, a namespace or the cluster.
func callOf(req *http.Request) call {
	info, err := paths.NewRequestInfo(req)
	if err != nil || !info.IsResourceRequest {
		return call{verb: req.Method, scope: "none"}
	}
	c := call{verb: req.Method, resource: info.Resource, subresource: info.Subresource, scope: "cluster"}
	if info.Verb == "list" || info.Verb == "watch" {
		c.verb = strings.ToUpper(info.Verb)
	}
	switch {
	case info.Name != "" || info.Verb == "create":
		c.scope = "resource"
	case info.Namespace != "":
		c.scope = "namespace"
	}
	return c
}
