package read

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// After a row that arrives two minutes late, upstream answers Tables for five minutes, or until the
// feed of the rows begins anew. A wrong row is never shown.
func TestWrongRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		time.Sleep(time.Hour)
		v := version{0, 5, time.Now(), "x"}
		j.reset(10, v)
		list := func() error {
			if !j.tables.Of(j.rows).Usable() {
				return errResting
			}
			resp, err := j.page(j.read(wire.IncludeNone, ""))
			if err == nil {
				resp.CloseBody()
			}
			return err
		}
		expect := func(want error) {
			t.Helper()
			if err := list(); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		applyLate := func() {
			t.Helper()
			late, err := j.rows.Resource().ParseRow(gjson.Parse(fmt.Sprintf(
				`{"cells":["c-000000","x","1s"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}}`, v.metadata())))
			if err != nil {
				t.Fatal(err)
			}
			cachetest.Apply(t, j.rows, late)
		}
		expect(nil)
		v.rv = 12
		cachetest.Apply(t, j.objects, j.object(v))
		time.Sleep(2 * time.Minute)
		applyLate()
		for range 3 {
			expect(Table)
			for range 5 {
				expect(errResting)
				time.Sleep(time.Minute)
			}
		}
		expect(Table)
		v.rv = 13
		j.apply(v, false)
		expect(errResting)
		time.Sleep(5 * time.Minute)
		expect(nil)
		v.rv = 14
		cachetest.Apply(t, j.objects, j.object(v))
		applyLate()
		expect(Table)
		expect(errResting)
		j.reset(14, v)
		expect(nil)
	})
}

var errResting = errors.New("rows are not used")
