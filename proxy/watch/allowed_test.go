package watch

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

const allowTTL, denyTTL = 20 * time.Second, 4 * time.Second

// rights are those of one user on one collection. It is a grants.Reviewer.
type rights struct {
	*testing.T
	sync.Mutex
	cache   *watchcache.Cache
	filter  *object.Filter
	eras    *grants.Eras
	allowed map[string]bool
	delay   time.Duration
}

func newRights(t *testing.T, allowed ...string) *rights {
	t.Helper()
	cache, _ := cachetest.Roomy(t)
	f, err := object.NewFilter(cache.Resource(), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rights{T: t, cache: cache, filter: f, eras: grants.NewEras(), allowed: map[string]bool{}}
	for _, name := range allowed {
		r.allowed[name] = true
	}
	return r
}

// Review implements grants.Reviewer.
func (r *rights) Review(ctx context.Context, namespace string) (a grants.Answer, err error) {
	r.Lock()
	allowed := r.allowed[namespace]
	r.Unlock()
	began := time.Now()
	select {
	case <-ctx.Done():
		return a, ctx.Err()
	case <-time.After(r.delay):
	}
	ttl := denyTTL
	if allowed {
		ttl = allowTTL
	}
	return grants.Answer{Allowed: allowed, Until: began.Add(ttl)}, nil
}

// DenyTTL implements grants.Reviewer.
func (*rights) DenyTTL() time.Duration { return denyTTL }

// Namespaces implements grants.Reviewer.
func (r *rights) Namespaces() iter.Seq[string] {
	selected := derived.Selected{Resource: r.cache.Resource(), Filter: r.filter}
	return selected.Namespaces(cachetest.Snapshot(r, r.cache).Tree)
}

func (r *rights) sets(namespace string, allowed bool) {
	r.Lock()
	defer r.Unlock()
	r.allowed[namespace] = allowed
}

// opens returns the parameters of a watch and the namespaces whose objects it has in its state.
func (r *rights) opens() (p Params, names []string) {
	r.Helper()
	state := cachetest.Snapshot(r, r.cache)
	w, err := r.eras.Open(r.Context(), grants.Key{}, r, slices.Collect(r.Namespaces()))
	if err != nil {
		r.Fatal(err)
	}
	p = paramsOf(r, r.cache, state)
	p.Cursor.Close()
	p.Filter, p.Grants, p.Anew = w.Narrow(r.filter), w, true
	if p.Cursor, err = r.cache.WatchAfter(p.Filter, state); err != nil {
		r.Fatal(err)
	}
	return p, w.Namespaces()
}

// writes applies a change to an object, which is "namespace/name", as one event.
func (r *rights) writes(deleted bool, key string) {
	r.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	rv := cachetest.Snapshot(r, r.cache).ResourceVersion() + 1
	o, err := r.cache.Resource().ParseObject(fmt.Appendf(nil,
		`{"metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":"%d"}}`, name, namespace, key, rv))
	if err == nil {
		err = r.cache.Writer().Apply([]watchcache.Change{{Deleted: deleted, Object: o}}, time.Now())
	}
	if err != nil {
		r.Fatal(err)
	}
}

var eventForm = regexp.MustCompile(`"type":"([A-Z]+)".*?(?:"name":"([^"]+)","namespace":"([^"]+)"|"code":(\d+))`)

// events returns the events of a watch's bytes in short: "ADDED a/x", or "ERROR 410".
func events(written []byte) (all []string) {
	for _, m := range eventForm.FindAllStringSubmatch(string(written), -1) {
		if m[4] != "" {
			all = append(all, m[1]+" "+m[4])
		} else {
			all = append(all, m[1]+" "+m[3]+"/"+m[2])
		}
	}
	return all
}

// If the grants change, a watch ends with 410 before the next event, in a pump and outside, and also if
// it is behind.
func TestRegranted(t *testing.T) {
	for name, changes := range map[string]int{"one event": 1, "many events": 2 * deltasMax} {
		for _, pumped := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRights(t, "a")
					r.writes(false, "a/x")
					p, _ := r.opens()
					var written bytes.Buffer
					out := &exchange.ChunkWriter{To: &written}
					w := opened(t, p, out)
					s := scratch(t, pumped)
					if on, _ := w.Step(t.Context(), out, s); !on || written.Len() > 0 {
						t.Fatalf("goes on: %v, wrote %s", on, written.Bytes())
					}
					r.sets("a", false)
					time.Sleep(allowTTL)
					for range changes {
						r.writes(false, "a/x")
					}
					on, _ := w.Step(t.Context(), out, s)
					if got := events(written.Bytes()); on || !slices.Equal(got, []string{"ERROR 410"}) || w.Reason() != endRegranted {
						t.Errorf("goes on: %v, reason %s, wrote %v", on, w.Reason(), got)
					}
				})
			})
		}
	}
}

// A watch that cannot be resumed ends with 410 where others end for their clients to resume, if its
// client asked for bookmarks as those do that resume.
func TestEndsToBeginAnew(t *testing.T) {
	for _, bookmarks := range []bool{false, true} {
		for _, drains := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRights(t, "a")
				r.writes(false, "a/x")
				cachetest.SetBookmark(t, r.cache)
				p, _ := r.opens()
				p.Bookmarks, p.Lifetime = bookmarks, time.Hour
				if drains {
					draining, drain := context.WithCancel(t.Context())
					p.Draining = draining
					time.AfterFunc(time.Minute, drain)
				}
				var written bytes.Buffer
				New(p).Run(t.Context(), &exchange.ChunkWriter{To: &written})
				if got := slices.Contains(events(written.Bytes()), "ERROR 410"); got != bookmarks {
					t.Errorf("bookmarks %t, drain %t: ends with 410: %t", bookmarks, drains, got)
				}
			})
		}
	}
}

// A watch that waits for a review ends at its timeout, and when the proxy drains.
func TestWaitingWatchEnds(t *testing.T) {
	for _, drains := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRights(t, "a", "b")
			r.writes(false, "a/x")
			cachetest.SetBookmark(t, r.cache)
			p, _ := r.opens()
			r.delay = time.Hour
			const lifetime = 10 * time.Minute
			want := lifetime
			p.Bookmarks, p.Lifetime = true, lifetime
			if drains {
				draining, drain := context.WithCancel(t.Context())
				p.Draining = draining
				want = 3 * time.Minute
				time.AfterFunc(want, drain)
			}
			time.AfterFunc(time.Second, func() { // one writer
				r.writes(false, "b/x")
				r.writes(false, "a/x")
			})
			var written bytes.Buffer
			began := time.Now()
			New(p).Run(t.Context(), &exchange.ChunkWriter{To: &written})
			took := time.Since(began)
			if got := events(written.Bytes()); took != want || !slices.Equal(got, []string{"ERROR 410"}) {
				t.Errorf("it ended after %v: %v", took, got)
			}
		})
	}
}

// minutely is a client that reads a piece a minute.
type minutely struct{ bytes.Buffer }

// Write implements io.Writer.
func (s *minutely) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return s.Buffer.Write(p)
}

// A slow client does not get the rest of the initial state if the grants change, or if it has lost
// its access.
func TestStateEnds(t *testing.T) {
	// At worst a review begins before from, its result is seen a piece later, and the next review
	// needs two further pieces. The last piece is written before the end.
	const from, most = 90 * time.Second, 5 * time.Minute
	for _, test := range []struct {
		name, reason string
		revoked      error
		regranted    bool
	}{
		{"regranted", endRegranted, nil, true},
		{"revoked", endRevoked, exchange.ErrRevoked, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRights(t, "a")
				changes := make([]watchcache.Change, 5000)
				for i := range changes {
					changes[i].Object = cachetest.ConfigMap(t, i, i+2)
				}
				if err := r.cache.Writer().Apply(changes, time.Now()); err != nil {
					t.Fatal(err)
				}
				p, _ := r.opens()
				initial := cachetest.Snapshot(t, r.cache)
				began := time.Now()
				p.Initial = begins(p, initial)
				meter := fair.NewMeter(t.Context(), &exchange.Request{}, fair.NewSlots(1), false)
				p.Meter, p.Recheck = &meter, 15*time.Second
				p.Owner = &owner{review: func(context.Context) error {
					if time.Since(began) >= from {
						return test.revoked
					}
					return nil
				}}
				if test.regranted {
					time.AfterFunc(from, func() { r.sets("a", false) })
				}
				out := &minutely{}
				w := New(p)
				w.Run(t.Context(), &exchange.ChunkWriter{To: out})
				if took := time.Since(began); took > most || w.Reason() != test.reason {
					t.Errorf("it ended after %v: %s", took, w.Reason())
				}
				if expired := bytes.Contains(out.Bytes(), []byte(`"code":410`)); expired != test.regranted {
					t.Errorf("it ends with 410: %v", expired)
				}
			})
		})
	}
}

// keysOf returns the keys of the objects in some namespaces.
func keysOf(state watchcache.Snapshot, names []string) map[string]bool {
	keys := map[string]bool{}
	for o := range state.Objects("", "") {
		if slices.Contains(names, o.Namespace()) {
			keys[keyOf(o)] = true
		}
	}
	return keys
}

func keyOf(o *object.Object) string { return o.Namespace() + "/" + o.Name() }
