package upstream

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// strictUpstream refuses verbs. It does not end open watches, as an apiserver does not.
type strictUpstream struct {
	*fakeUpstream
	status atomic.Int64           // of refusals
	wide   atomic.Pointer[string] // the verbs that are refused in all namespaces
	narrow atomic.Pointer[string] // and in the namespace ns
	silent atomic.Bool            // requests have no answer
	takes  atomic.Int64           // the duration of each request
	tries  atomic.Int64           // requests for the right to get or to watch
}

func newStrict() *strictUpstream {
	s := &strictUpstream{fakeUpstream: newFake()}
	s.refuse(http.StatusForbidden, "", "")
	return s
}

func (s *strictUpstream) refuse(status int, wide, narrow string) {
	s.status.Store(int64(status))
	s.wide.Store(&wide)
	s.narrow.Store(&narrow)
}

// RoundTrip implements http.RoundTripper.
func (s *strictUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.silent.Load() {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	time.Sleep(time.Duration(s.takes.Load()))
	before, after, ok := strings.Cut(req.URL.Path, "/configmaps")
	if !ok {
		return s.fakeUpstream.RoundTrip(req)
	}
	verb, query := "list", req.URL.Query()
	switch {
	case after != "":
		verb = "get"
	case query.Get("watch") != "":
		verb = "watch"
	}
	try := verb == "get" || verb == "watch" && query.Get("timeoutSeconds") == "1"
	if try {
		s.tries.Add(1)
	}
	verbs := *s.wide.Load()
	if strings.HasSuffix(before, "/namespaces/ns") {
		verbs = *s.narrow.Load()
	}
	switch {
	case strings.Contains(verbs, verb):
		return statusReply(int(s.status.Load())), nil
	case verb == "get":
		return statusReply(http.StatusNotFound), nil
	case try:
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}, nil
	}
	return s.fakeUpstream.RoundTrip(req)
}

func read(t *testing.T, feeds *Feeds, verb string) (*fresh.Feed, error) {
	t.Helper()
	w := object.Want{Namespace: "ns", Verb: verb}
	if verb == "get" {
		w.Name = "a"
	}
	return feeds.Open(t.Context(), configmaps, w, object.JSON, 0)
}

// A reader without rights of its own reads no longer than the proxy itself may.
func TestLostRights(t *testing.T) {
	for _, lost := range []string{"list", "watch", "list,watch", "get", "get,list,watch"} {
		for _, status := range []int{http.StatusForbidden, http.StatusUnauthorized} {
			synctest.Test(t, func(t *testing.T) {
				s := newStrict()
				s.set("a", "1")
				feeds := start(t, s)
				for _, verb := range []string{"get", "list", "watch", "get"} {
					if _, err := read(t, feeds, verb); err != nil {
						t.Fatalf("%s: %v", verb, err)
					}
				}
				f, err := read(t, feeds, "list")
				if err != nil {
					t.Fatal(err)
				}
				s.refuse(status, lost, lost)
				time.Sleep(fresh.RightsLast)
				for _, verb := range []string{"get", "list", "watch", "get"} {
					if !strings.Contains(lost, verb) {
						continue
					}
					if _, err := read(t, feeds, verb); err == nil {
						t.Errorf("%s lost with %d: upstream refuses it, the cache answers", verb, status)
					}
				}
				synctest.Wait()
				if n := len(feeds.list()); n != 1 {
					t.Errorf("%s lost with %d: %d feeds", lost, status, n)
				}
				if _, err := read(t, feeds, "list"); (err == nil) != !strings.Contains(lost, "list") {
					t.Errorf("%s lost with %d: a list: %v", lost, status, err)
				}
				s.refuse(status, "", "")
				time.Sleep(fresh.RightsLast)
				for _, verb := range []string{"get", "list", "watch"} {
					if same, err := read(t, feeds, verb); same != f || err != nil {
						t.Errorf("%s given back: %v, %v", verb, same, err)
					}
				}
			})
		}
	}
}

// Readers whose own rights have been reviewed need no right of the proxy to get. The proxy's rights
// are not asked for.
func TestReviewedRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict()
		feeds := start(t, s)
		s.refuse(http.StatusForbidden, "get", "get")
		for range 100 {
			if _, err := feeds.Open(t.Context(), configmaps, object.Want{Namespace: "ns", Name: "a", Verb: "get", Reviewed: true}, object.JSON, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := s.tries.Load(); n != 0 {
			t.Errorf("asked %d times", n)
		}
	})
}

// If the proxy may read one namespace only, from now on, the cache of that namespace answers.
func TestNarrowerRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict()
		s.set("a", "1")
		feeds := start(t, s)
		if f, err := read(t, feeds, "list"); err != nil || !f.Scope.Whole() {
			t.Fatal(f, err)
		}
		s.refuse(http.StatusForbidden, "get,list,watch", "")
		time.Sleep(fresh.RightsLast)
		for _, verb := range []string{"list", "get", "watch"} {
			if f, err := read(t, feeds, verb); err != nil || f.Scope != (object.Scope{Namespace: "ns"}) {
				t.Errorf("%s: %v, %v", verb, f, err)
			}
		}
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{Verb: "list"}, object.JSON, 0); err == nil {
			t.Error("a list of all namespaces")
		}
	})
}

// Many readers ask once in RightsLast, however many they are. If upstream does not answer, readers
// wait for a second at most, and the cache answers.
func TestRightsAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict()
		s.set("a", "1")
		feeds := start(t, s)
		readAll := func(most time.Duration) {
			t.Helper()
			done := make(chan error)
			began := time.Now()
			for range 50 {
				go func() {
					_, err := read(t, feeds, "get")
					done <- err
				}()
			}
			for range 50 {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took > most {
				t.Errorf("took %s", took)
			}
		}
		for range 60 {
			readAll(0)
			time.Sleep(time.Second)
		}
		if n := s.tries.Load(); n != 6 {
			t.Errorf("asked %d times in a minute", n)
		}
		s.silent.Store(true)
		time.Sleep(time.Second)
		readAll(time.Second)
		for range 9 {
			readAll(0)
			time.Sleep(time.Second)
		}
		time.Sleep(2 * feed.Silence)
		for range 20 { // upstream is known to be lost
			readAll(0)
			time.Sleep(time.Second)
		}
		s.silent.Store(false)
		time.Sleep(time.Minute)
		s.locked(func() { s.mu.down = errDown })
		s.cutStreams(false)
		for range 60 {
			readAll(0)
			time.Sleep(time.Second)
		}
	})
}

// If upstream is silent, readers that leave early do not keep others from an answer, and nobody waits for
// long.
func TestImpatientReaders(t *testing.T) {
	for _, age := range []time.Duration{fresh.RightsLast / 2, fresh.RightsLast} {
		synctest.Test(t, func(t *testing.T) {
			s := newStrict()
			s.set("a", "1")
			feeds := start(t, s)
			if _, err := read(t, feeds, "list"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(age)
			s.silent.Store(true)
			var all sync.WaitGroup
			for range 600 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), feed.Patience*3/4)
					defer cancel()
					if _, err := feeds.Open(ctx, configmaps, object.Want{Namespace: "ns", Verb: "list"}, object.JSON, 0); err != nil {
						t.Error(err)
					}
				})
				time.Sleep(300 * time.Millisecond)
			}
			all.Wait()
		})
	}
}

// A first get waits for upstream's answer.
func TestSlowConsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict()
		s.set("a", "1")
		feeds := start(t, s)
		if _, err := read(t, feeds, "list"); err != nil {
			t.Fatal(err)
		}
		s.takes.Store(int64(2 * feed.Patience))
		if _, err := read(t, feeds, "get"); err != nil {
			t.Error(err)
		}
	})
}

// An answer counts even if no reader has waited for it.
func TestSlowRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict()
		s.set("a", "1")
		feeds := start(t, s)
		for _, verb := range []string{"get", "list", "watch"} {
			if _, err := read(t, feeds, verb); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		s.refuse(http.StatusForbidden, "get,list,watch", "get,list,watch")
		s.takes.Store(int64(2 * feed.Patience))
		began := time.Now()
		for range 60 {
			for _, verb := range []string{"list", "watch", "get"} {
				if _, err := read(t, feeds, verb); err == nil && time.Since(began) > 3*feed.Patience {
					t.Errorf("%s after %s", verb, time.Since(began))
				}
			}
			time.Sleep(time.Second)
			s.set("a", time.Since(began).String()) // the stream is alive
		}
	})
}
