package watchcache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

func pod(name string, rv uint64) watchcache.Pod {
	return watchcache.Pod{Namespace: "a", Name: name, UID: name, RV: rv}
}

// filled returns a cache at rv with these pods.
func filled(rv uint64, pods ...watchcache.Pod) *watchcache.Cache {
	c := watchcache.New(*watchcache.Pods, watchcache.Roomy)
	c.Writer().Reset(objects(pods...), rv)
	return c
}

func objects(pods ...watchcache.Pod) []*object.Object {
	var list []*object.Object
	for _, p := range pods {
		list = append(list, p.Object())
	}
	slices.SortFunc(list, func(a, b *object.Object) int { return strings.Compare(a.Key(), b.Key()) })
	return list
}

func everything(t testing.TB) *object.Filter {
	t.Helper()
	return watchcache.Select(t, watchcache.Pods, "", nil, nil)
}

// show formats deltas as "ADDED web@2 2": the type, the object with its own resourceVersion, and
// the resourceVersion of the change.
func show(deltas []watchcache.Delta) string {
	var all []string
	for _, d := range deltas {
		all = append(all, fmt.Sprintf("%s %s@%d %d", d.Type, d.Object.Name(), d.Object.ResourceVersion(), d.RV))
	}
	return strings.Join(all, ", ")
}

func wantPoll(t testing.TB, c *watchcache.Cursor, limit int, want string, wantPosition uint64) {
	t.Helper()
	deltas, position, err := c.Poll(nil, limit, math.MaxInt)
	if err != nil {
		t.Fatalf("poll: %v", err)
	}
	if got := show(deltas); got != want || position != wantPosition {
		t.Fatalf("polled [%s] at %d, want [%s] at %d", got, position, want, wantPosition)
	}
}

func names(s watchcache.Snapshot) string {
	var all []string
	for o := range s.Objects("", "") {
		all = append(all, fmt.Sprintf("%s@%d", o.Name(), o.ResourceVersion()))
	}
	return strings.Join(all, " ")
}

func TestCacheNotReady(t *testing.T) {
	c := watchcache.New(*watchcache.Pods, watchcache.Roomy)
	check := func(want error) {
		t.Helper()
		if _, err := c.Snapshot(); !errors.Is(err, want) {
			t.Errorf("Snapshot: %v, want %v", err, want)
		}
		if _, err := c.SnapshotAt(1); !errors.Is(err, want) {
			t.Errorf("SnapshotAt: %v, want %v", err, want)
		}
		if _, err := c.Watch(everything(t), 1); !errors.Is(err, want) {
			t.Errorf("Watch: %v, want %v", err, want)
		}
	}
	check(watchcache.ErrNotReady)
	c.Writer().Advance(0, watchcache.Noon)
	if s := c.Stats(); s != (watchcache.Stats{}) {
		t.Errorf("stats of an empty cache: %+v", s)
	}
	c.Writer().Reset(nil, 5)
	cursor := watchcache.Watch(t, c, "", 5)
	c.Writer().End()
	c.Writer().End()
	check(watchcache.ErrEnded)
	if _, _, err := cursor.Poll(nil, 1, math.MaxInt); !errors.Is(err, watchcache.ErrEnded) {
		t.Errorf("Poll: %v, want ErrEnded", err)
	}
	watchcache.WantSignal(t, cursor)
}

func TestCacheApply(t *testing.T) {
	c := filled(10, pod("x", 5))
	cursor := watchcache.Watch(t, c, "", 10)
	watchcache.Apply(t, c, pod("x", 11).Set(), pod("y", 12).Set())
	watchcache.Apply(t, c, pod("x", 11).Set(), pod("y", 12).Set(), pod("x", 13).Delete()) // repeats
	watchcache.Apply(t, c, pod("x", 13).Delete())
	wantPoll(t, cursor, 10, "MODIFIED x@11 11, ADDED y@12 12, DELETED x@13 13", 13)
	for rv, want := range map[uint64]string{10: "x@5", 11: "x@11", 12: "x@11 y@12", 13: "y@12"} {
		s, err := c.SnapshotAt(rv)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(s); got != want || s.ResourceVersion() != rv {
			t.Errorf("at %d: [%s] at %d, want [%s]", rv, got, s.ResourceVersion(), want)
		}
	}
	c.Writer().Advance(20, watchcache.Noon)
	c.Writer().Advance(15, watchcache.Noon)
	wantPoll(t, cursor, 10, "", 20)
	if _, err := c.SnapshotAt(9); !errors.Is(err, watchcache.ErrTooOld) {
		t.Errorf("SnapshotAt(9): %v", err)
	}
	if _, err := c.SnapshotAt(21); !errors.Is(err, watchcache.ErrTooNew) {
		t.Errorf("SnapshotAt(21): %v", err)
	}
	var tooOld *watchcache.TooOldError
	if _, err := c.Watch(everything(t), 9); !errors.As(err, &tooOld) || !errors.Is(err, watchcache.ErrTooOld) {
		t.Errorf("Watch(9): %v", err)
	} else if err.Error() != "too old resource version: 9 (10)" {
		t.Errorf("Watch(9): %q", err)
	}
}

// The cache refuses a change that does not fit. Earlier changes stay applied, and cursors are
// signalled.
func TestCacheDiverged(t *testing.T) {
	replaced := pod("x", 12)
	replaced.UID = "other"
	for name, bad := range map[string]watchcache.Change{
		"deleted but not there": pod("z", 12).Delete(),
		"replaced":              replaced.Set(),
		"other one deleted":     replaced.Delete(),
	} {
		t.Run(name, func(t *testing.T) {
			c := filled(10, pod("x", 5))
			cursor := watchcache.Watch(t, c, "", 10)
			err := c.Writer().Apply([]watchcache.Change{pod("y", 11).Set(), bad, pod("y", 13).Set()}, watchcache.Noon)
			if !errors.Is(err, watchcache.ErrDiverged) {
				t.Fatalf("Apply: %v", err)
			}
			watchcache.WantSignal(t, cursor)
			wantPoll(t, cursor, 10, "ADDED y@11 11", 11)
			s, _ := c.Snapshot()
			if got := names(s); got != "x@5 y@11" {
				t.Errorf("state is %s", got)
			}
			watchcache.Apply(t, c, pod("x", 14).Set())
			wantPoll(t, cursor, 10, "MODIFIED x@14 14", 14)
		})
	}
}

// When a lease expires, etcd deletes all its keys at one revision, and kube-apiserver's Events
// share leases.
func TestCacheOneRevisionManyDeletions(t *testing.T) {
	deletions := []watchcache.Change{pod("x", 20).Delete(), pod("y", 20).Delete(), pod("z", 20).Delete()}
	want := "DELETED x@20 20, DELETED y@20 20, DELETED z@20 20"
	t.Run("whole", func(t *testing.T) {
		c := filled(10, pod("x", 5), pod("y", 6), pod("z", 7))
		cursor, resumed := watchcache.Watch(t, c, "", 10), watchcache.Watch(t, c, "", 10)
		watchcache.Apply(t, c, deletions...)
		watchcache.Apply(t, c, deletions[1:]...) // repeats
		s, err := c.SnapshotAt(20)
		if err != nil || s.Len() != 0 {
			t.Errorf("%d objects left, %v", s.Len(), err)
		}
		wantPoll(t, cursor, 10, want, 20)
		// A position between events of one revision is below that revision.
		wantPoll(t, resumed, 1, "DELETED x@20 20", 19)
		wantPoll(t, watchcache.Watch(t, c, "", 19), 10, want, 20)
		watchcache.Apply(t, c, pod("x", 21).Set())
		wantPoll(t, cursor, 10, "ADDED x@21 21", 21)
	})
	t.Run("repeats at the same revision", func(t *testing.T) {
		c := filled(10, pod("x", 5))
		watchcache.Apply(t, c, pod("x", 11).Set(), pod("x", 11).Set(), pod("y", 11).Delete())
		if s := c.Stats(); s.Events != 1 || s.Objects != 1 {
			t.Errorf("repeats were not dropped: %+v", s)
		}
	})
}

// A published revision never changes: one resourceVersion has one value, and a list and a watch
// from its resourceVersion miss nothing. After a revision that was published too early, open
// watches get the rest from a relist. Whatever else came from the wrong states has to list.
func TestHalfARevision(t *testing.T) {
	for _, rv := range []uint64{21, 25} {
		t.Run(fmt.Sprint(rv), func(t *testing.T) {
			c := filled(10, pod("x", 5), pod("y", 6), pod("z", 7))
			open, behind := watchcache.Watch(t, c, "", 10), watchcache.Watch(t, c, "", 10)
			watchcache.Apply(t, c, pod("x", 20).Delete())
			wantPoll(t, open, 10, "DELETED x@20 20", 20)
			listed, _ := c.Snapshot()
			for _, rest := range []watchcache.Change{pod("y", 20).Delete(), pod("z", 20).Set(), pod("a", 20).Set()} {
				if err := c.Writer().Apply([]watchcache.Change{rest}, watchcache.Noon); !errors.Is(err, watchcache.ErrDiverged) {
					t.Errorf("the rest of a published revision: %v", err)
				}
			}
			if s, err := c.SnapshotAt(20); err != nil || names(s) != names(listed) {
				t.Errorf("one resourceVersion, two states: [%s], [%s], %v", names(listed), names(s), err)
			}

			c.Writer().Distrust()
			removal := "DELETED y@21 21"
			if rv > 21 {
				removal = "DELETED y@20 20" // at the last resourceVersion before the gap
			}
			if err := c.Writer().Replace(objects(pod("z", 7)), rv, watchcache.Noon); err != nil {
				t.Fatal(err)
			}
			wantPoll(t, open, 10, removal, rv)
			if _, _, err := behind.Poll(nil, 10, math.MaxInt); !errors.Is(err, watchcache.ErrLagged) {
				t.Errorf("a watch behind the wrong states: %v", err)
			}
			all := everything(t)
			for from := uint64(10); from < rv; from++ {
				var tooOld *watchcache.TooOldError
				if _, err := c.Watch(all, from); !errors.As(err, &tooOld) || !tooOld.Gap {
					t.Errorf("watch from %d: %v", from, err)
				}
				if s, err := c.SnapshotAt(from); !errors.Is(err, watchcache.ErrTooOld) {
					t.Errorf("at %d there are [%s], %v", from, names(s), err)
				}
			}
			if _, err := c.WatchAfter(all, listed); !errors.Is(err, watchcache.ErrTooOld) {
				t.Errorf("watch after the wrong state: %v", err)
			}
			if s, err := c.SnapshotAt(rv); err != nil || names(s) != "z@7" {
				t.Errorf("at %d there are [%s], %v", rv, names(s), err)
			}
			wantPoll(t, watchcache.Watch(t, c, "", rv), 10, "", rv)
		})
	}
}

// If a relist shows the same state at the same revision, the distrusted state was right.
func TestDistrustWithoutADifference(t *testing.T) {
	c := filled(10, pod("x", 5))
	watchcache.Apply(t, c, pod("y", 20).Set())
	c.Writer().Distrust()
	if err := c.Writer().Replace(objects(pod("x", 5), pod("y", 20)), 20, watchcache.Noon); err != nil {
		t.Fatal(err)
	}
	cursor := watchcache.Watch(t, c, "", 20)
	watchcache.Apply(t, c, pod("x", 21).Set())
	wantPoll(t, cursor, 10, "MODIFIED x@21 21", 21)
	if s, err := c.SnapshotAt(20); err != nil || names(s) != "x@5 y@20" {
		t.Errorf("at 20 there are [%s], %v", names(s), err)
	}
}

// If the bytes of a version differ after a distrusted state, upstream was restored. No state is
// carried into another history.
func TestDistrustComparesBytes(t *testing.T) {
	c := filled(10, pod("x", 5))
	rewritten := pod("x", 5)
	rewritten.Node = "n2"
	c.Writer().Distrust()
	if err := c.Writer().Replace(objects(rewritten), 20, watchcache.Noon); !errors.Is(err, watchcache.ErrDiverged) {
		t.Errorf("Replace: %v", err)
	}
}

func TestCursorPosition(t *testing.T) {
	c := filled(10)
	watchcache.Apply(t, c, pod("x", 12).Set(), pod("y", 15).Set(), pod("z", 16).Set())
	c.Writer().Advance(18, watchcache.Noon)
	cursor := watchcache.Watch(t, c, "", 10)
	wantPoll(t, cursor, 0, "", 11)
	wantPoll(t, cursor, 1, "ADDED x@12 12", 14)
	wantPoll(t, cursor, 1, "ADDED y@15 15", 15)
	wantPoll(t, cursor, 1, "ADDED z@16 16", 18)
	wantPoll(t, cursor, 1, "", 18)
	future := watchcache.Watch(t, c, "", 25)
	wantPoll(t, future, 10, "", 18)
	watchcache.Apply(t, c, pod("x", 24).Set(), pod("y", 25).Set(), pod("z", 26).Set())
	wantPoll(t, future, 10, "MODIFIED z@26 26", 26)
}

// The guarantee Not older than: a reader waits until any write reaches its resourceVersion, or until its time
// or the cache ends.
func TestCacheWaitFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := watchcache.New(*watchcache.Pods, watchcache.Roomy)
		ask := func(rv uint64, during func(), want uint64, wantErr error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			var s watchcache.Snapshot
			var err error
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				s, err = c.WaitFresh(ctx, rv)
			}()
			synctest.Wait()
			select {
			case <-answered:
				t.Errorf("%d: answered too early: %d, %v", rv, s.ResourceVersion(), err)
			default:
			}
			during()
			<-answered
			if s.ResourceVersion() != want || !errors.Is(err, wantErr) {
				t.Errorf("%d: %d, %v", rv, s.ResourceVersion(), err)
			}
		}
		ask(0, func() {}, 0, watchcache.ErrNotReady)
		ask(5, func() { c.Writer().Reset(nil, 5) }, 5, nil)
		ask(6, func() { watchcache.Apply(t, c, pod("x", 7).Set()) }, 7, nil)
		ask(10, func() {
			c.Writer().Advance(9, watchcache.Noon)
			synctest.Wait()
			c.Writer().Advance(10, watchcache.Noon)
		}, 10, nil)
		ask(11, func() {
			if err := c.Writer().Replace(objects(pod("x", 7)), 11, watchcache.Noon); err != nil {
				t.Fatal(err)
			}
		}, 11, nil)
		ask(12, func() {}, 11, watchcache.ErrTooNew)
		ask(12, c.Writer().End, 0, watchcache.ErrEnded)
	})
}

// The log drops old events beyond each of its limits, and no others. It may exceed a limit by a part of 128
// events or a megabyte.
func TestLogKeepsToItsLimits(t *testing.T) {
	const events, pad, most = 1000, 10 << 10, 128
	for name, test := range map[string]struct {
		limits watchcache.Limits
		want   int // events
	}{
		"age":    {watchcache.Limits{Age: 500 * time.Second, Events: 1 << 30, Bytes: 1 << 40}, 500},
		"events": {watchcache.Limits{Age: time.Hour, Events: 300, Bytes: 1 << 40}, 300},
		"bytes":  {watchcache.Limits{Age: time.Hour, Events: 1 << 30, Bytes: 400 * pad}, 400 - 52}, // a path costs 1,536 bytes
		"none":   {watchcache.Limits{}, 0},
		"roomy":  {watchcache.Roomy, events},
	} {
		t.Run(name, func(t *testing.T) {
			c := watchcache.New(*watchcache.Pods, test.limits)
			c.Writer().Reset(nil, 1)
			for i := range events {
				p := pod("x", uint64(2+i))
				p.Pad = pad
				if err := c.Writer().Apply([]watchcache.Change{p.Set()}, watchcache.Noon.Add(time.Duration(i)*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			s := c.Stats()
			if s.LogEvents < test.want-most || s.LogEvents > test.want+most || s.Since != s.ResourceVersion-uint64(s.LogEvents) {
				t.Errorf("%d events since %d at %d, want %d", s.LogEvents, s.Since, s.ResourceVersion, test.want)
			}
			if at, err := c.SnapshotAt(s.Since); err != nil || s.Since > 1 && names(at) != fmt.Sprintf("x@%d", s.Since) {
				t.Errorf("the oldest state is [%s], %v", names(at), err)
			}
		})
	}
}
