package read

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/table"
)

// A list that is compressed while it is written holds the memory of a compressor. Without room, upstream
// answers.
func TestCompressorsAreCounted(t *testing.T) {
	for _, room := range []int64{compressorSize, compressorSize - 1} {
		memory := fair.NewPool(room, false)
		r, snapshot := pageOf(t, 3000, 0)
		r.derived = newDerived(t, 1<<20)
		selecting(t, r, "labelSelector=none!=x")
		r.Memory = memory.Holding("")
		r.Gzip = true
		from, to := r.filter.KeyRange(r.resource)
		_, err := r.page(snapshot, from, to)
		if fits := room >= compressorSize; fits != (err == nil) || !fits && !errors.Is(err, TooLarge) || fits && memory.Taken() != compressorSize {
			t.Errorf("in %d bytes: %v, and %d are held", room, err, memory.Taken())
		}
		r.Free()
		if n := memory.Taken(); n != 0 {
			t.Errorf("%d bytes are held in the end", n)
		}
	}
}

// A body that is made for one request holds its own length. If it cannot be made, it holds nothing, because
// its request is forwarded then.
func TestBodiesAreCounted(t *testing.T) {
	memory := fair.NewPool(1<<20, false)
	r, _ := pageOf(t, 0, 0)
	r.Memory = memory.Holding("")
	for _, broken := range []error{nil, OtherForm} {
		resp, err := r.makeAnswer(300<<10, func() (*exchange.Response, error) {
			return &exchange.Response{Body: exchange.Bytes(make([]byte, 100<<10))}, broken
		})
		if n := memory.Taken(); !errors.Is(err, broken) || n != 100<<10 {
			t.Errorf("%v: %d bytes are held", err, n)
		}
		if err == nil && resp.Body.(*fair.List).Turns != &r.meter {
			t.Error("the body is written without turns")
		}
	}
}

// A read that waits for the memory of a Table has no slot meanwhile.
func TestTablesWaitWithoutSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots, memory := fair.NewPool(1, false), fair.NewPool(100, false)
		r, _ := metered(t, 1, slots)
		r.rows, r.Memory = &table.Rows{}, memory.Holding("")
		if !memory.Try("other", 1) || r.meter.Spend(2*fair.Turn) != nil || slots.Taken() != 1 {
			t.Fatal("no room")
		}
		go func() {
			if _, err := r.holdTable(&exchange.Response{Body: &fair.List{Length: 100}}, nil); err != nil {
				t.Error(err)
			}
		}()
		if synctest.Wait(); memory.Waiting() != 1 || slots.Taken() != 0 {
			t.Errorf("%d claims wait, %d slots are held", memory.Waiting(), slots.Taken())
		}
		memory.Give("other", 1)
		synctest.Wait()
		r.Free()
	})
}
