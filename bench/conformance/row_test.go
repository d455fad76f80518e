package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// row is one request of the differential suite.
type row struct {
	name string // the purpose of the row
	request
	status int    // status of both responses; 0: any
	from   source // source of the proxy's response
	open   rule   // the parts that may differ; nil: same
	says   string // a text in both bodies
	// moving is for content that changes on its own: the apiserver renews its own lease, and Tables
	// show ages. The two requests cannot be sent at exactly the same time, so a difference counts
	// only if it repeats.
	moving bool
	yaml   bool // requested in YAML, see unwritable
}

// attempts is the number of times that a moving row is tried.
const attempts = 3

// check runs a row.
func (r row) check(t *testing.T) {
	t.Helper()
	err := r.try(t.Context())
	for range attempts - 1 {
		if err != nil && r.moving {
			err = r.try(t.Context())
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// try sends the request to both servers at the same time.
func (r row) try(ctx context.Context) error {
	before, err := sources(ctx)
	if err != nil {
		return err
	}
	want, got, err := r.ask(ctx)
	if err != nil {
		return err
	}
	after, err := sources(ctx)
	if err != nil {
		return err
	}
	if r.yaml && unwritable(want) {
		r.status, r.from = want.Status, upstream
	}
	if from := counted(before, after); !r.from.matches(from) {
		return fmt.Errorf("the answer came from %q instead of %q\n%s%d %.500s", from, r.from, reasons(ctx, r.Target), got.Status, got.Body)
	}
	return r.judge(want, got)
}

// judge compares the responses with the row's expectations and with each other.
func (r row) judge(want, got reply) error {
	switch {
	case r.status != 0 && want.Status != r.status:
		return fmt.Errorf("the apiserver answers %d instead of %d\n%.500s", want.Status, r.status, want.Body)
	case !bytes.Contains(want.Body, []byte(r.says)):
		return fmt.Errorf("the apiserver does not say %q\n%.1000s", r.says, want.Body)
	}
	if _, query, _ := strings.Cut(r.Target, "?"); watches(query) {
		var err, gotErr error
		want, err = uncompressedWatch(want)
		got, gotErr = uncompressedWatch(got)
		if err = errors.Join(err, gotErr); err != nil {
			return fmt.Errorf("a compressed watch: %w", err)
		}
	}
	return Compare(want, got, r.open)
}

// uncompressedWatch decompresses a watch. Since version 1.37, kube-apiserver compresses watches that
// begin with the state, each write as a gzip member. TestWatchEncoding compares the headers.
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

func (r row) ask(ctx context.Context) (want, got reply, err error) {
	var both sync.WaitGroup
	var wantErr, gotErr error
	both.Go(func() { want, wantErr = apiserver.Ask(ctx, r.request) })
	both.Go(func() { got, gotErr = proxied.Ask(ctx, settled(r.request)) })
	both.Wait()
	return want, got, errors.Join(wantErr, gotErr)
}

// run checks a row as a subtest, and also in other forms, each as a subtest.
func (r row) run(t *testing.T) {
	t.Helper()
	t.Run(r.name, r.check)
	for _, v := range r.inForms() {
		t.Run(v.name, v.check)
	}
}

// check runs a table.
func check(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		r.run(t)
	}
}

// atOnce is the number of requests that checkTogether sends to each server concurrently.
const atOnce = 64

// checkTogether runs slow rows concurrently, including their other forms. Rows in YAML come one
// after another, because one large list can take all of the memory that the proxy has for such
// bodies. Then it would forward another list.
func checkTogether(t *testing.T, rows []row) {
	t.Helper()
	var others, yaml []row
	for _, r := range withForms(rows) {
		if r.yaml {
			yaml = append(yaml, r)
		} else {
			others = append(others, r)
		}
	}
	checkAtOnce(t, others, atOnce)
	checkAtOnce(t, yaml, 1)
}

// withForms adds the rows' other forms.
func withForms(rows []row) (all []row) {
	for _, r := range rows {
		all = append(append(all, r), r.inForms()...)
	}
	return all
}

// checkAtOnce runs rows, some of them concurrently. The number of responses from each source must
// match the rows. A finite watch may end before it has sent its events. Such rows run again, with
// more time.
func checkAtOnce(t *testing.T, rows []row, atOnce int) {
	t.Helper()
	before, err := sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wants, gots, errs := make([]reply, len(rows)), make([]reply, len(rows)), make([]error, len(rows))
	_ = workload.Parallel(t.Context(), len(rows), atOnce, func(ctx context.Context, i int) error {
		wants[i], gots[i], errs[i] = rows[i].ask(ctx)
		return nil
	})
	after, err := sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	due, open, came := map[source]int{}, 0, 0
	for i := range rows {
		r := &rows[i]
		if r.yaml && unwritable(wants[i]) {
			r.status, r.from = wants[i].Status, upstream
		}
		if r.from == anywhere || r.from == cache && inParts {
			open++
		} else {
			due[r.from]++
		}
	}
	for from := range after {
		n := after[from] - before[from]
		if came += n; n < due[from] || n > due[from]+open {
			t.Errorf("%d answers came from %q instead of %d", n, from, due[from])
		}
	}
	if came != len(rows) {
		t.Errorf("%d answers to %d requests", came, len(rows))
	}
	var again []row
	for i, r := range rows {
		err := errs[i]
		if err == nil {
			err = r.judge(wants[i], gots[i])
		}
		if err != nil && r.cutShort(wants[i], gots[i]) {
			r.Target = short.ReplaceAllString(r.Target, "timeoutSeconds=15")
			again = append(again, r)
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if len(again) > 0 {
		checkAtOnce(t, again, atOnce)
	}
}

// short matches the parameter of finite watches. On a busy machine, a watch may end before the server
// has sent its events, or even before it has its state.
var short = regexp.MustCompile(`\btimeoutSeconds=[1-3]\b`)

// cutShort reports whether the responses to a finite watch differ only because one of them ended
// too early.
func (r *row) cutShort(want, got reply) bool {
	less, more := want.Body, got.Body
	if len(less) > len(more) {
		less, more = more, less
	}
	late := []byte("context deadline exceeded")
	return short.MatchString(r.Target) &&
		(want.Status == got.Status && bytes.HasPrefix(more, less) || bytes.Contains(want.Body, late) || bytes.Contains(got.Body, late))
}

// rule removes the parts of a body that the contract leaves open.
type rule = Rule

// same is the rule that leaves nothing open.
func same(body []byte) ([]byte, error) { return body, nil }

// exact returns the rule for pages of a collection at an exact resourceVersion.
func (c *collection) exact() rule {
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
