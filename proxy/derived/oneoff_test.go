package derived

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// The compression of a long list needs turns.
func TestOneOffListsTakeTurns(t *testing.T) {
	for name, test := range map[string]struct {
		size  int64
		taken bool
		fails bool
	}{
		"short": {fair.Turn, true, false},
		"long":  {fair.Turn + 1, true, true},
		"alone": {4 * fair.Turn, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			slots := fair.NewSlots(1)
			if test.taken {
				if !slots.Short.Try("other", 1) {
					t.Fatal("no slot")
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			m := fair.NewMeter(ctx, &exchange.Request{}, slots, false)
			if test.fails {
				cancel() // a read that waits fails when its client leaves
			}
			defer cancel()
			list := &List{Pieces: [][]byte{make([]byte, test.size)}}
			_, err := (&OneOff{List: list, Meter: &m}).WriteTo(io.Discard)
			if errors.Is(err, context.Canceled) != test.fails || err != nil && !test.fails {
				t.Errorf("error %v", err)
			}
			if m.ReleaseSlot(); test.taken && slots.Short.Taken() != 1 || !test.taken && slots.Short.Taken() != 0 {
				t.Errorf("%d slots are taken", slots.Short.Taken())
			}
		})
	}
}
