package read

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// One row that arrives two minutes late does not keep Tables out of the cache: the rows are read
// again. If the fresh rows are wrong, too, they are not read again and again.
func TestLateRowIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		time.Sleep(time.Hour)
		v := version{0, 5, time.Now(), "x"}
		j.reset(10, v)
		rereads, fresh := 0, func() *object.Object { return j.row(v) }
		list := func() error {
			if !j.tables.Of(j.rows).Usable() {
				return Table
			}
			r := j.read(wire.IncludeNone, "")
			r.rows.Reread = func(error) {
				rereads++
				j.rows.Reset([]*object.Object{fresh()}, 12)
			}
			resp, err := j.page(r)
			if err == nil {
				resp.CloseBody()
			}
			return err
		}
		late := func() *object.Object {
			o, err := j.rows.Resource().ParseRow(gjson.Parse(fmt.Sprintf(
				`{"cells":["c-000000","x","1s"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}}`, v.metadata())))
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		v.rv = 12
		cachetest.Apply(t, j.objects, j.object(v))
		time.Sleep(2 * time.Minute)
		cachetest.Apply(t, j.rows, late())
		if err := list(); err == nil || rereads != 1 {
			t.Fatalf("a late row: %v, read again %d times", err, rereads)
		}
		if err := list(); err != nil {
			t.Fatalf("fresh rows: %v", err)
		}
		fresh = late
		j.rows.Reset([]*object.Object{late()}, 12)
		for range 24 * 60 * 4 {
			if list() == nil {
				t.Fatal("a wrong row is shown")
			}
			time.Sleep(15 * time.Second)
		}
		if rereads < 20 || rereads > 25 {
			t.Errorf("rows were read again %d times in a day", rereads)
		}
		fresh = func() *object.Object { return j.row(v) }
		time.Sleep(3 * time.Hour)
		_ = list()
		if err := list(); err != nil {
			t.Errorf("right rows, after a rest: %v", err)
		}
	})
}
