package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// row is one request of the differential suite.
type row struct {
	name string // the purpose of the row
	request
	view   *view  // in which the proxy answers; nil: none
	status int    // status of both responses; 0: any
	from   source // source of the proxy's response
	open   Rule   // the parts that may differ; nil: same
	says   string // a text in both bodies
	// moving is for content that changes on its own: the apiserver renews its own lease, and Tables
	// show ages. The two requests cannot be sent at exactly the same time, so a difference counts
	// only if it repeats. A wrong source always counts.
	moving bool
}

// attempts is the number of times that a moving row is tried.
const attempts = 3

// try sends the request to both servers at the same time. If the responses differ, it sends the
// request again if the content is moving, and a finite watch that may have ended before it has sent
// its events, with more time. A response from a wrong source fails at once.
func (r row) try(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		want, got, err := r.ask(ctx)
		if err != nil {
			return err
		}
		if unwritable(want) {
			r.status = want.Status
		}
		if err := r.from.check(ctx, answers, got.Header); err != nil {
			return fmt.Errorf("%d %.300s: %w", got.Status, got.Body, err)
		}
		if want, got, err = r.alike(ctx, want, got); err == nil {
			err = r.judge(want, got)
		}
		switch {
		case err != nil && r.cutShort(want, got):
			r.Target = short.ReplaceAllString(r.Target, "timeoutSeconds=15")
		case err == nil || !r.moving || attempt == attempts:
			return err
		}
	}
}

// judge compares the responses with the row's expectations and with each other.
func (r row) judge(want, got reply) error {
	switch {
	case r.status != 0 && want.Status != r.status:
		return fmt.Errorf("the apiserver answers %d instead of %d\n%.500s", want.Status, r.status, want.Body)
	case !bytes.Contains(want.Body, []byte(r.says)):
		return fmt.Errorf("the apiserver does not say %q\n%.1000s", r.says, want.Body)
	}
	return Compare(want, got, r.open)
}

// alike returns both responses in a form that can be compared: watches without compression, and what
// the view must show, in the form in which it shows it.
func (r row) alike(ctx context.Context, want, got reply) (w, g reply, err error) {
	if r.watches() {
		if w, g := want.Header.Get("Content-Encoding"), got.Header.Get("Content-Encoding"); w != g && r.view == nil {
			return want, got, fmt.Errorf("Content-Encoding is %q instead of %q", g, w)
		}
		var gotErr error
		want, err = uncompressedWatch(want)
		got, gotErr = uncompressedWatch(got)
		if err = errors.Join(err, gotErr); err != nil {
			return want, got, fmt.Errorf("a compressed watch: %w", err)
		}
	}
	if r.view == nil || r.view.foreign {
		if r.watches() {
			want.Body, got.Body = settledBookmarks(want), settledBookmarks(got)
		}
		return want, got, nil
	}
	from, err := answers.of(ctx, got.Header)
	if err != nil {
		return want, got, err
	}
	if want, got, err = r.view.compared(r, want, got, from); err != nil {
		err = fmt.Errorf("%v: %w", r.view, err)
	}
	return want, got, err
}

// settledBookmarks returns the body of a watch. If it has bookmarks, their resourceVersions may be any.
func settledBookmarks(r reply) []byte {
	events, err := eventsIn(r)
	if err != nil || !slices.ContainsFunc(events, func(e Event) bool { return e.Type == "BOOKMARK" }) {
		return r.Body
	}
	return joined(events)
}

// watches reports whether the response has events. A get ignores the parameter.
func (r row) watches() bool {
	path, query, _ := strings.Cut(r.Target, "?")
	if parts := plainPath.FindStringSubmatch(path); parts != nil && parts[1] != "watch" {
		return parts[2] == "" && watches(query)
	}
	return watches(query) && !strings.HasSuffix(path, "/") || strings.Contains(path, "/v1/watch/")
}

// uncompressedWatch decompresses a watch. Since version 1.37, kube-apiserver compresses watches that
// begin with the state, each write as a gzip member.
func uncompressedWatch(r reply) (reply, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return r, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(r.Body))
	if err != nil {
		return r, err
	}
	r.Body, err = io.ReadAll(z)
	r.Header = r.Header.Clone()
	r.Header.Del("Content-Encoding")
	r.Header.Del("Vary")
	return r, err
}

// ask sends the request to both servers. It sends it again while the proxy forwards it, although the
// cache has the objects, because the proof of the cache takes seconds.
func (r row) ask(ctx context.Context) (want, got reply, err error) {
	for began := time.Now(); ; cluster.Pause(ctx, 100*time.Millisecond) {
		want, got, err = r.askOnce(ctx)
		if err != nil || r.from != cache || inParts || time.Since(began) > cluster.Limit || !answers.unproved(ctx, got.Header) {
			return want, got, err
		}
	}
}

func (r row) askOnce(ctx context.Context) (want, got reply, err error) {
	var both sync.WaitGroup
	var wantErr, gotErr error
	both.Go(func() { want, wantErr = apiserver.Ask(ctx, r.view.direct(r.request)) })
	both.Go(func() { got, gotErr = proxied.Ask(ctx, settled(r.view.of(r.request))) })
	both.Wait()
	return want, got, errors.Join(wantErr, gotErr)
}

// check runs a row, but not in other forms.
func (r row) check(t *testing.T) {
	t.Helper()
	if err := r.try(t.Context()); err != nil {
		t.Error(err)
	}
}

// run checks a row, also in other forms and in a view.
func (r row) run(t *testing.T) {
	t.Helper()
	check(t, []row{r})
}

// check runs rows, also in other forms and in views, each as a subtest.
func check(t *testing.T, rows []row) {
	t.Helper()
	var all []row
	for _, r := range rows {
		all = append(append(all, r), r.inForms()...)
		if other, ok := r.inView(); ok {
			all = append(all, other)
		}
	}
	checkAsIs(t, all)
}

// atOnce is the number of rows that are sent concurrently, by all tests together. Each uses at most
// one connection to each server. With more rows at once, some would wait for the proxy's memory for
// longer than two seconds on a busy machine. Then the proxy would forward them. Finite watches mostly
// wait for their end, so more of them can be open. The proxy forwards at most 32 watches of what its
// log no longer has.
const atOnce, watchesAtOnce, forwardedAtOnce = 50, 100, 24

var slots, watchSlots, forwardedSlots = make(chan struct{}, atOnce), make(chan struct{}, watchesAtOnce), make(chan struct{}, forwardedAtOnce)

// checkAsIs runs rows concurrently, but not in other forms.
func checkAsIs(t *testing.T, rows []row) {
	t.Helper()
	errs := make([]error, len(rows))
	_ = workload.Parallel(t.Context(), len(rows), atOnce+watchesAtOnce, func(ctx context.Context, i int) error {
		slot := slots
		switch {
		case rows[i].watches() && rows[i].from == upstream:
			slot = forwardedSlots
		case rows[i].watches():
			slot = watchSlots
		}
		slot <- struct{}{}
		defer func() { <-slot }()
		errs[i] = rows[i].try(ctx)
		return nil
	})
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if errs[i] != nil {
				t.Error(errs[i])
			}
		})
	}
}

// short matches the parameter of finite watches. On a busy machine, a watch may end before the server
// has sent its events, or even before it has its state.
var short = regexp.MustCompile(`\btimeoutSeconds=[1-3]\b`)

// cutShort reports whether the responses to a finite watch differ only because one of them ended
// too early.
func (r *row) cutShort(want, got reply) bool {
	less, more := age.ReplaceAll(want.Body, []byte(`AGE$2"`)), age.ReplaceAll(got.Body, []byte(`AGE$2"`))
	if len(less) > len(more) {
		less, more = more, less
	}
	late := []byte("context deadline exceeded")
	return short.MatchString(r.Target) &&
		(want.Status == got.Status && bytes.HasPrefix(more, less) || bytes.Contains(want.Body, late) || bytes.Contains(got.Body, late))
}

// same is the rule that leaves nothing open.
func same(body []byte) ([]byte, error) { return body, nil }

// exact returns the rule for pages of a collection at an exact resourceVersion.
func (c *collection) exact() Rule {
	if c.uncached {
		return same // etcd answers all of these requests
	}
	return ExactPage
}

var reached = regexp.MustCompile(`(Too large resource version: \d+, current: |too old resource version: \d+ \()\d+`)

// reach is the rule for errors that name the limits of a cache's history.
func reach(body []byte) ([]byte, error) {
	if !reached.Match(body) {
		return nil, fmt.Errorf("does not tell how far the cache reaches: %.200s", body)
	}
	return reached.ReplaceAll(body, []byte("${1}RV")), nil
}

var etcdRevision = regexp.MustCompile(`etcd returned revision \d+`)

// revisions is the rule for errors that name etcd's revision.
func revisions(body []byte) ([]byte, error) {
	return etcdRevision.ReplaceAll(body, []byte("etcd returned revision RV")), nil
}

var drawn = regexp.MustCompile(`"retryAfterSeconds":[123]\b`)

// reachByLot is reach for watches of resources that the apiserver does not cache. Their errors
// contain a random time for the next attempt.
func reachByLot(body []byte) ([]byte, error) {
	body, err := reach(body)
	return drawn.ReplaceAll(body, []byte(`"retryAfterSeconds":N`)), err
}

// listToken returns the continue token of a list.
func listToken(r reply) string { return gjson.GetBytes(r.Body, "metadata.continue").Str }
