package read

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// joined is a cache of configmaps and a cache of their rows. Its clock belongs to a synctest
// bubble.
type joined struct {
	t             *testing.T
	objects, rows *watchcache.Cache
	tables        table.Registry
	reader        *Reader
	derived       *derived.Store
	memory        *fair.Pool
}

func newJoined(t *testing.T) *joined {
	t.Helper()
	limits := watchcache.Limits{Age: 1000 * time.Hour, Events: 1 << 20, Bytes: 1 << 30}
	r := cachetest.Resource()
	j := &joined{t: t, objects: watchcache.New(r, limits), tables: table.Registry{Log: zap.NewNop()}, derived: newDerived(t, 1<<20)}
	r.Encoding = object.Table
	r.Columns.Definitions = []byte(`[{"name":"Name","type":"string"},{"name":"Data","type":"string"},{"name":"Age","type":"string"}]`)
	j.rows = watchcache.New(r, limits)
	b, _, err := j.rows.Resource().ParseBookmark([]byte(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"columnDefinitions":null,
		"rows":[{"cells":["","",""],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	j.rows.Writer().SetBookmark(b)
	const memory = 1 << 30
	j.memory = fair.NewPool(memory, false)
	j.reader = New(Config{Memory: j.memory, Limits: unlimited{}, Metrics: uncounted{}, Life: exchange.NewLife(), Log: zap.NewNop()}, Options{})
	return j
}

// version is a version of a configmap. Its row shows text and the age since created.
type version struct {
	i, rv   int
	created time.Time
	text    string
}

func (j *joined) object(v version) *object.Object {
	return objectOf(j.t, j.objects.Resource(), `{"metadata":%s,"data":{"v":%q}}`, v.metadata(), v.text)
}

func (v version) metadata() string {
	return fmt.Sprintf(`{"name":"c-%06d","namespace":"a","uid":"u","resourceVersion":"%d","creationTimestamp":%q,"labels":{"of":"%d"}}`,
		v.i, v.rv, v.created.UTC().Format(time.RFC3339), v.rv)
}

// row returns the row as upstream would write it now.
func (j *joined) row(v version) *object.Object {
	o, err := j.rows.Resource().ParseRow(gjson.Parse(fmt.Sprintf(
		`{"cells":["c-%06d",%q,%q],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}}`,
		v.i, v.text, duration.HumanDuration(time.Since(v.created)), v.metadata())))
	if err != nil {
		j.t.Fatal(err)
	}
	return o
}

func (j *joined) reset(rv uint64, all ...version) {
	var objects, rows []*object.Object
	for _, v := range all {
		objects, rows = append(objects, j.object(v)), append(rows, j.row(v))
	}
	j.objects.Writer().Reset(objects, rv)
	j.rows.Writer().Reset(rows, rv)
}

func (j *joined) apply(v version, deleted bool) {
	for cache, o := range map[*watchcache.Cache]*object.Object{j.objects: j.object(v), j.rows: j.row(v)} {
		if err := cache.Writer().Apply([]watchcache.Change{{Object: o, Deleted: deleted}}, time.Now()); err != nil {
			j.t.Fatal(err)
		}
	}
}

func (j *joined) read(objects bool, encoding string) *read {
	rows := &table.Rows{Rules: j.tables.Of(j.rows), Cache: j.rows, Context: j.t.Context()}
	return &read{reading: reading{
		Request: &exchange.Request{
			Header: http.Header{"Accept-Encoding": {encoding}}, Memory: j.memory.Holding(""),
		},
		plan: plan{
			Route: exchange.Route{Namespace: "a"}, Params: exchange.Params{RowObjects: objects},
			Kind: wire.List, Gzip: wire.AcceptsGzip(encoding),
		},
		source: source{
			cache: j.objects, resource: j.objects.Resource(), filter: cachetest.Filter(j.t, j.objects),
			form: wire.NewTable(configMaps, objects, rows, nil), rows: rows, choice: wire.Choice{Table: true},
		},
		derived: j.derived,
		meter:   fair.NewMeter(j.t.Context(), nil, nil, false),
	}}
}

func (j *joined) page(r *read) (*exchange.Response, error) {
	_, end := r.filter.KeyRange(r.resource)
	return r.page(cachetest.Snapshot(j.t, j.objects), "a/", end)
}

// list returns the rows of a list from the key on, decompressed.
func (j *joined) list(r *read, from string) gjson.Result {
	j.t.Helper()
	resp := pageAt(j.t, r, cachetest.Snapshot(j.t, j.objects), from)
	if j.memory.Taken() == 0 {
		j.t.Error("an unread list holds memory without room for it")
	}
	body := bodyOf(j.t, resp)
	if bytes.HasPrefix(body, []byte("\x1f\x8b")) {
		body = unzipped(j.t, body)
	}
	if !gjson.ValidBytes(body) {
		j.t.Fatalf("not JSON: %.200s", body)
	}
	return gjson.GetBytes(body, "rows")
}

// watch returns what a watch after resourceVersion 10 writes. Once it is open, meanwhile runs.
func (j *joined) watch(r *read, meanwhile func()) (written string) {
	j.t.Helper()
	r.Kind, r.Watch, r.RV, r.WatchSeconds = wire.Watch, true, 10, 5
	resp, err := j.reader.watch(j.t.Context(), r)
	if err != nil {
		j.t.Fatal(err)
	}
	meanwhile()
	var to strings.Builder
	resp.Body.(exchange.Stream).Run(j.t.Context(), &exchange.ChunkWriter{To: &to, Unchunked: true})
	return to.String()
}

// Whatever changes, and whichever pieces were kept from earlier lists, each row has the cells of
// its object's version and the current age, compressed or not.
func TestTablesAreThoseOfNow(t *testing.T) {
	seed := cachetest.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		const objects = 300
		steps := cachetest.Rounds(15, 40)
		random := rand.New(rand.NewPCG(seed, 2))
		j := newJoined(t)
		time.Sleep(1000 * time.Hour)
		now := make([]version, objects)
		rv := 1
		for i := range now {
			now[i] = version{i, rv, time.Now().Add(-time.Duration(random.Int64N(int64(500 * time.Hour)))), "first"}
			rv++
		}
		j.reset(uint64(rv), now...)
		for step := range steps {
			rv++
			switch i := random.IntN(objects); random.IntN(12) {
			case 0: // a new epoch, with other texts at the same resourceVersions
				for i := range now {
					now[i].text = fmt.Sprint("epoch ", step)
				}
				j.reset(uint64(rv), now...)
			default:
				now[i] = version{i, rv, now[i].created, fmt.Sprint("step ", step)}
				j.apply(now[i], false)
			}
			from := random.IntN(objects / 2)
			for _, encoding := range []string{"gzip", ""} {
				r := j.read(step%2 == 0, encoding)
				rows := j.list(r, fmt.Sprintf("a/c-%06d", from)).Array()
				if len(rows) != objects-from {
					t.Fatalf("%d rows instead of %d", len(rows), objects-from)
				}
				for at, row := range rows {
					v := now[from+at]
					want := fmt.Sprintf(`["c-%06d",%q,%q]`, v.i, v.text, duration.HumanDuration(time.Since(v.created.Truncate(time.Second))))
					if got := row.Get("cells").Raw; got != want {
						t.Fatalf("step %d, %q: %s instead of %s", step, encoding, got, want)
					}
				}
			}
			time.Sleep(time.Duration(random.Int64N(int64(time.Minute))) << random.IntN(8))
		}
	})
}

// A Table holds room for its pieces until it is closed. Without room, upstream answers.
func TestTablesHoldRoom(t *testing.T) {
	const objects = 3000
	for _, encoding := range []string{"", "gzip"} {
		synctest.Test(t, func(t *testing.T) {
			j := newJoined(t)
			all := make([]version, objects)
			for i := range all {
				all[i] = version{i, i + 1, time.Now(), "text"}
			}
			j.reset(objects, all...)
			plain, err := j.page(j.read(false, encoding))
			if err != nil {
				t.Fatal(err)
			}
			want := plain.Body.(*fair.List).Length
			plain.Close(0)
			for memory, broken := range map[int64]error{want: nil, want - 1: TooLarge} {
				j.memory = fair.NewPool(memory, false)
				r := j.read(false, encoding)
				resp, err := j.page(r)
				if !errors.Is(err, broken) {
					t.Errorf("%q, %d bytes of %d: %v", encoding, want, memory, err)
				}
				if err != nil {
					continue
				}
				if held := j.memory.Taken(); held != want {
					t.Errorf("%q: an unread list of %d bytes holds %d bytes", encoding, want, held)
				}
				bodyOf(t, resp)
			}
		})
	}
}

// A compressed piece does not refer to ages in the piece before it, because ages change.
func TestPiecesReferToNoAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := cachetest.Rounds(150, 400)
		j := newJoined(t)
		began := time.Now()
		time.Sleep(240*time.Hour - time.Minute)
		// Each object is 13 minutes younger than the object before it, and all are about ten days old.
		now := make([]version, objects)
		for i := range now {
			now[i] = version{i, i + 1, began.Add(time.Duration(i-objects) * 13 * time.Minute), "same"}
		}
		j.reset(uint64(objects), now...)
		for range 125 { // 25 hours
			r := j.read(false, "gzip")
			for i, row := range j.list(r, "a/").Array() {
				age := duration.HumanDuration(time.Since(now[i].created.Truncate(time.Second)))
				if want := fmt.Sprintf(`["c-%06d","same",%q]`, i, age); row.Get("cells").Raw != want {
					t.Fatalf("%s instead of %s", row.Get("cells").Raw, want)
				}
			}
			time.Sleep(12 * time.Minute)
		}
	})
}

// A watch shows each object with the cells that belong to its content. The cases are a relist that
// misses an object, a deletion, and an object that leaves the selection.
func TestRowsOfWatches(t *testing.T) {
	for _, objects := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			j := newJoined(t)
			time.Sleep(time.Hour)
			v := func(i, rv int, text string) version { return version{i, rv, time.Now().Add(-time.Minute), text} }
			j.reset(10, v(0, 5, "old"), v(1, 6, "other"))
			j.apply(v(0, 11, "new"), false)
			written := j.watch(j.read(objects, ""), func() {
				j.apply(v(1, 12, "last"), true)
				for _, c := range []*watchcache.Cache{j.objects, j.rows} {
					if err := c.Writer().Replace(nil, 20, time.Now()); err != nil {
						t.Fatal(err)
					}
				}
			})
			var got []string
			for line := range strings.Lines(written) {
				got = append(got, gjson.Get(line, "type").Str+" "+gjson.Get(line, "object.rows.0.cells.1").Str)
			}
			if want := "[MODIFIED new DELETED last DELETED new]"; fmt.Sprint(got) != want {
				t.Errorf("with objects %t: %s instead of %s", objects, got, want)
			}
		})
	}
}

// A watch that waits for a late row has no slot, not even that of the event before.
func TestLateRowsAreAwaitedWithoutASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		time.Sleep(time.Hour)
		created := time.Now().Add(-time.Minute)
		j.reset(10, version{0, 5, created, "old"}, version{1, 6, created, "old"})
		slots, r, late := fair.NewPool(1, false), j.read(false, ""), version{1, 12, created, "late"}
		r.meter = fair.NewMeter(t.Context(), &exchange.Request{}, &fair.Slots{Short: slots, Long: slots}, false)
		if err := r.meter.Spend(fair.Turn); err != nil { // the next event needs a turn
			t.Fatal(err)
		}
		written := j.watch(r, func() {
			j.apply(version{0, 11, created, "prompt"}, false)
			cachetest.Apply(t, j.objects, j.object(late))
			go func() {
				time.Sleep(time.Second)
				if n := slots.Taken(); n != 0 {
					t.Errorf("%d slots are taken", n)
				}
				cachetest.Apply(t, j.rows, j.row(late))
			}()
		})
		if got := strings.Count(written, "MODIFIED"); got != 2 || !strings.Contains(written, "late") {
			t.Errorf("%d events:\n%s", got, written)
		}
	})
}

// An object that leaves a selection is shown with the row of its previous version.
func TestRowOfALeaver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		time.Sleep(time.Hour)
		j.reset(10, version{0, 5, time.Now(), "selected"})
		r := j.read(false, "")
		selecting(t, r, "labelSelector=of%3D5")
		written := j.watch(r, func() { j.apply(version{0, 11, time.Now(), "not selected"}, false) })
		event := gjson.Parse(written)
		if event.Get("type").Str != "DELETED" || event.Get("object.rows.0.cells.1").Str != "selected" || event.Get("object.rows.0.object.metadata.resourceVersion").Str != "11" {
			t.Error(written)
		}
	})
}
