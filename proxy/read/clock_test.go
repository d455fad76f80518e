package read

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// While this machine's clock may differ from upstream's, no Table is written, not even one that has
// been opened. The rows remain good for later.
func TestTablesNeedAClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoined(t)
		r := *j.rows.Resource()
		r.Columns.Clock = &object.Clock{}
		j.rows = watchcache.New(r, j.rows.Limits())
		time.Sleep(time.Hour)
		j.reset(10, version{0, 5, time.Now(), "x"})
		for _, ahead := range []time.Duration{time.Minute, 0, -time.Minute, 0} {
			now := time.Now()
			r.Columns.Clock.Note(now, now, now.Add(ahead))
			right := ahead == 0
			if j.tables.Of(j.rows).Usable() != right {
				t.Errorf("%v ahead: usable is %v", ahead, !right)
			}
			read := j.read(false, "")
			read.derived = newDerived(t, 1<<20)
			resp, err := j.page(read)
			if (err == nil) != right || read.rows.Failed() == right {
				t.Errorf("%v ahead: %v", ahead, err)
			}
			if err == nil {
				resp.Close(0)
			}
		}
	})
}
