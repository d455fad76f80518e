package read

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// A list that is compressed while it is written equals the plain list, and gives back its room.
func TestOneOffListsAreThePlainOnes(t *testing.T) {
	for _, c := range []struct {
		partial, zips bool
	}{
		{zips: true},
		{zips: true, partial: true},
		{partial: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			slots := fair.NewPool(1, false)
			r, snapshot := pageOf(t, 3000, 0)
			r.derived = newDerived(t, 1<<20)
			selecting(t, r, "labelSelector=none!=x")
			r.Client = exchange.Nobody{}
			r.meter = fair.NewMeter(t.Context(), r.Request, &fair.Slots{Short: slots, Long: slots}, r.Kind != wire.Watch)
			r.choice = wire.Choice{Partial: c.partial}
			r.form = wire.NewForm(r.choice, configMaps)
			whole := func() []byte {
				resp := pageAt(t, r, snapshot, "a/")
				r.meter.End()
				return bodyOf(t, resp)
			}
			want := whole()
			if c.zips {
				r.Gzip = true
			}
			got := whole()
			if c.zips {
				got = unzipped(t, got)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes differ from %d", len(got), len(want))
			}
			if slots.Taken() != 0 {
				t.Errorf("%d slots were not given back", slots.Taken())
			}
		})
	}
}

// A client that does not read even the beginning of an expensive list holds no slot.
func TestUnreadListHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := fair.NewPool(1, false)
		r, snapshot := metered(t, 5000, slots)
		selecting(t, r, "labelSelector=none!=x")
		r.Gzip = true
		resp := pageAt(t, r, snapshot, "a/")
		r.meter.End()
		if err := r.meter.Spend(fair.Turn); err != nil { // the first piece then needs a slot
			t.Fatal(err)
		}
		unread := make(chan struct{})
		go func() {
			if _, err := resp.Body.(*fair.List).Write(writerFunc(func(p []byte) (int, error) {
				<-unread
				return len(p), nil
			}), true); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if slots.Taken() != 0 {
			t.Error("a slot is held")
		}
		close(unread)
		synctest.Wait()
	})
}
