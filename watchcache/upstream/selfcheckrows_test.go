package upstream

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// A cell that changes without its object counts as a difference, unless it is an age.
func TestRowsDiffer(t *testing.T) {
	r := cachetest.Resource()
	r.Encoding = object.Table
	row := func(name string, rv int, cells string) *object.Object {
		o, err := r.ParseRow(gjson.Parse(fmt.Sprintf(
			`{"cells":%s,"object":{"metadata":{"name":%q,"namespace":"ns","uid":"u","resourceVersion":"%d"}}}`, cells, name, rv)))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	c := watchcache.New(r, watchcache.Limits{Age: time.Hour, Events: 10, Bytes: 1 << 20})
	c.Reset([]*object.Object{row("a", 1, `["a","x","5m"]`), row("b", 2, `["b","y","7m"]`)}, 2)
	for name, upstream := range map[string]struct {
		rows []*object.Object
		same bool
	}{
		"ages moved":    {[]*object.Object{row("a", 1, `["a","x","8m"]`), row("b", 2, `["b","y","10m"]`)}, true},
		"first page":    {[]*object.Object{row("a", 1, `["a","x","8m"]`)}, true},
		"another cell":  {[]*object.Object{row("a", 1, `["a","x","8m"]`), row("b", 2, `["b","z","10m"]`)}, false},
		"another row":   {[]*object.Object{row("c", 1, `["c","x","8m"]`)}, false},
		"older version": {[]*object.Object{row("a", 3, `["a","x","8m"]`)}, false},
	} {
		var err error
		for _, theirs := range upstream.rows {
			err = cmp.Or(err, rowDiffers(cachetest.Snapshot(t, c), theirs))
		}
		if errors.Is(err, feed.ErrDiffers) == upstream.same {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Other columns upstream are a difference.
func TestOtherColumnsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datedUpstream{fakeUpstream: newFake()}
		feeds := start(t, d)
		f, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Table, 0)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the stream has caught up
		for _, outcome := range []string{"same", "changed"} {
			d.wide.Store(outcome == "changed")
			feeds.check(f)
			if got := testutil.ToFloat64(feeds.metrics.checks.WithLabelValues("", "v1", "configmaps", outcome)); got != 1 {
				t.Errorf("%v checks are %s", got, outcome)
			}
		}
		time.Sleep(time.Minute)
		if f, err = feeds.Open(t.Context(), configmaps, object.Want{}, object.Table, 0); err != nil || len(gjson.ParseBytes(f.Cache().Resource().Columns.Definitions).Array()) != 2 {
			t.Errorf("the feed keeps its columns: %v", err)
		}
	})
}

// The only object of a scope may appear and disappear. Only other JSON of no rows is a difference.
func TestOtherEmptyRowsDiffer(t *testing.T) {
	const row = `[{"cells":["a"]}]`
	for _, tc := range []struct{ before, now, outcome string }{
		{row, "[]", "same"}, {"[]", row, "same"}, {"[]", "[]", "same"}, {"[]", "null", "changed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &datedUpstream{fakeUpstream: newFake()}
			d.found.Store(tc.before)
			feeds := start(t, d)
			f, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Table, 0)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the stream has caught up
			d.found.Store(tc.now)
			feeds.check(f)
			if got := testutil.ToFloat64(feeds.metrics.checks.WithLabelValues("", "v1", "configmaps", tc.outcome)); got != 1 {
				t.Errorf("from %s to %s: %v checks are %s", tc.before, tc.now, got, tc.outcome)
			}
		})
	}
}

// Rows anywhere in a state can be compared.
func TestRowsBeginAnywhere(t *testing.T) {
	_, s := cachetest.ConfigMaps(t, 2*checkedRows)
	at := 0
	for o := range s.Objects("", "") {
		at++
		token := pageOf(s, at).Get("continue")
		text, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"%s\u0000"}`, s.ResourceVersion(), o.Key()); string(text) != want {
			t.Fatalf("without %d rows: %s instead of %s", at, text, want)
		}
	}
	if q := pageOf(s, 0); q.Has("continue") || q.Get("resourceVersionMatch") != "Exact" {
		t.Errorf("from the start: %v", q)
	}
}
