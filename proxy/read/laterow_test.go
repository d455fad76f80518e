package read

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// A read waits for a late row without a slot. A row from another history is ignored. A row that
// does not belong to its object makes upstream answer for five minutes.
func TestMissingRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		time.Sleep(time.Hour)
		j.reset(10, version{0, 5, time.Now(), "x"})
		list := func() error {
			r := j.read(false, "")
			_, err := j.page(r)
			if err != nil {
				_, err = r.retried(t.Context(), err, func(context.Context) (*exchange.Response, error) { return j.page(r) })
			}
			return err
		}
		late := version{0, 11, time.Now(), "y"}
		cachetest.Apply(t, j.objects, j.object(late))
		written := make(chan error, 1)
		time.AfterFunc(rowWait/2, func() { written <- j.rows.Writer().Apply([]watchcache.Change{{Object: j.row(late)}}, time.Now()) })
		if began := time.Now(); list() != nil || time.Since(began) != rowWait/2 {
			t.Errorf("a list waited %v", time.Since(began))
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		lost := version{0, 12, time.Now(), "lost history"}
		cachetest.Apply(t, j.rows, j.row(lost))
		lost.created = lost.created.Add(-time.Second) // other metadata
		cachetest.Apply(t, j.objects, j.object(lost))
		if err := list(); !errors.Is(err, OtherTable) || j.tables.Of(j.rows).Usable() {
			t.Errorf("a row of another history is shown: %v", err)
		}
		time.Sleep(5 * time.Minute)
		if !j.tables.Of(j.rows).Usable() {
			t.Error("Tables are still forwarded")
		}
	})
}

// If metadata cannot be converted, the next watches of the cache are forwarded.
func TestUnwritableRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		r := cachetest.Resource()
		r.SelfDescribing = true
		j.objects = watchcache.New(r, j.rows.Limits())
		j.objects.Writer().Reset(nil, 10)
		j.rows.Writer().Reset(nil, 10)
		o := objectOf(t, j.objects.Resource(),
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"creationTimestamp":%q,"fieldOfTomorrow":"1","name":"c-000000","namespace":"a","resourceVersion":"11","uid":"u"}}`,
			time.Now().UTC().Format(time.RFC3339))
		cachetest.Apply(t, j.objects, o)
		cachetest.Apply(t, j.rows, j.row(version{0, 11, time.Now(), "x"}))
		open := func(selector string) error {
			r := j.read(false, "")
			var err error
			if r.filter, err = object.NewFilter(r.resource, "a", nil, fields.ParseSelectorOrDie(selector)); err != nil {
				t.Fatal(err)
			}
			r.Kind, r.Watch, r.RV, r.WatchSeconds = wire.Watch, true, 10, 60
			k := configMaps
			k.Sorted = true
			r.form = wire.NewTable(k, false, r.rows, nil)
			resp, err := j.reader.watch(context.Background(), r)
			if err == nil {
				resp.Body.(exchange.Stream).Run(t.Context(), &exchange.ChunkWriter{To: io.Discard})
			}
			return err
		}
		if err := open(""); err != nil {
			t.Fatal(err)
		}
		if err := open(""); err != OtherForm { //nolint:errorlint // it is not wrapped
			t.Errorf("the second watch: %v", err)
		}
		if err := open("metadata.name!=c-000000"); err != OtherForm { //nolint:errorlint // it is not wrapped
			t.Errorf("a watch of other objects: %v", err)
		}
	})
}
