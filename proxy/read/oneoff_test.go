package read

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// A list that is indented or compressed while it is written equals the plain list, and gives back
// its room.
func TestOneOffListsAreThePlainOnes(t *testing.T) {
	for _, c := range []struct {
		partial, pretty, selects, zips bool
		objects                        int64 // 0 means 3,000
	}{
		{pretty: true},
		{pretty: true, partial: true},
		{pretty: true, selects: true},
		{pretty: true, zips: true},
		{pretty: true, zips: true, partial: true},
		{pretty: true, zips: true, selects: true},
		{zips: true, selects: true},
		{zips: true, selects: true, partial: true},
		{selects: true, partial: true},
		{pretty: true, zips: true, objects: 10},
		{pretty: true, zips: true, objects: 1000},
		{pretty: true, zips: true, partial: true, objects: 1000},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			slots := fair.NewQueue(1, false, 1<<20)
			r, snapshot := pageOf(t, 3000, c.objects)
			r.derived = newDerived(t, 1<<20)
			r.workspace = fair.NewWorkspace(1<<30, false, 1<<20)
			if c.selects {
				selecting(t, r, "labelSelector=none!=x")
			}
			r.Client = exchange.Nobody{}
			r.meter = fair.NewMeter(t.Context(), r.Request, slots, r.Kind(r.Name) != wire.Watch)
			r.choice = wire.Choice{Partial: c.partial}
			r.form = wire.NewForm(r.choice, configMaps)
			whole := func() []byte {
				resp := pageAt(t, r, snapshot, "a/")
				r.meter.End()
				return bodyOf(t, resp)
			}
			want := whole()
			r.choice.Pretty = c.pretty
			if c.pretty {
				var indented bytes.Buffer
				if err := json.Indent(&indented, bytes.TrimSuffix(want, []byte("\n")), "", "  "); err != nil {
					t.Fatal(err)
				}
				want = indented.Bytes()
			}
			if c.zips {
				r.Header.Set("Accept-Encoding", "gzip")
			}
			got := whole()
			if c.zips && len(want) > wire.GzipThreshold {
				got = unzipped(t, got)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes differ from %d", len(got), len(want))
			}
			if slots.Taken() != 0 || r.workspace.Taken() != 0 {
				t.Errorf("%d slots and %d bytes were not given back", slots.Taken(), r.workspace.Taken())
			}
		})
	}
}

// The indented form of a deeply nested object may be thousands of times as long. Its memory is
// claimed before it is made. If there is too little, upstream answers.
func TestIndentedBodiesClaimTheirLength(t *testing.T) {
	const depth = 2000
	deep := []byte(`{"a":` + strings.Repeat("[", depth) + "1" + strings.Repeat(",1", depth) + strings.Repeat("]", depth) + "}\n")
	length := wire.IndentedLength(deep)
	if length < 100*int64(len(deep)) {
		t.Fatalf("%d bytes become %d", len(deep), length)
	}
	for _, zips := range []bool{false, true} {
		most := int64(len(deep)) + length
		if zips {
			most += (gzipWork - 1) * length
		}
		for memory, want := range map[int64]error{most - 1: TooLarge, most: nil} {
			r, _ := pageOf(t, 1, 1)
			r.Client = exchange.Nobody{}
			r.meter = fair.NewMeter(t.Context(), r.Request, fair.NewQueue(1, false, 1<<20), true)
			r.workspace = fair.NewWorkspace(memory, false, 1<<20)
			r.choice.Pretty = true
			if zips {
				r.Header.Set("Accept-Encoding", "gzip")
			}
			resp, err := r.indented(deep)
			if !errors.Is(err, want) {
				t.Errorf("with %d bytes of memory, gzip %t: %v", memory, zips, err)
			}
			if err != nil {
				continue
			}
			got := bodyOf(t, resp)
			if zips {
				got = unzipped(t, got)
			}
			if int64(len(got)) != length || r.workspace.Taken() != 0 {
				t.Errorf("%d bytes, and %d of memory are held", len(got), r.workspace.Taken())
			}
		}
	}
}

// A list that is indented while it is written takes turns by the bytes that it becomes.
func TestIndentedListsTakeTurnsByTheirLength(t *testing.T) {
	const depth, least = 2000, 10 // its compact form takes no turn
	deep := []byte(strings.Repeat("[", depth) + "1" + strings.Repeat(",1", depth) + strings.Repeat("]", depth))
	slots, turns := fair.NewQueue(1, false, 1<<20), 0
	slots.Took = func(string, int64) { turns++ }
	r, _ := metered(t, 1, slots)
	one := &derived.OneOff{List: &derived.List{Pieces: [][]byte{deep}, Length: int64(len(deep))}, Meter: &r.meter, Indents: true}
	if _, err := one.WriteTo(io.Discard); err != nil {
		t.Fatal(err)
	}
	if turns < least {
		t.Errorf("%d turns for %d bytes", turns, wire.IndentedLength(deep))
	}
}

// The length of selected metadata is unknown before it is made, so upstream indents it.
func TestSelectedMetadataIsNotIndented(t *testing.T) {
	r, snapshot := pageOf(t, 10, 10)
	r.derived, r.workspace = newDerived(t, 1<<20), fair.NewWorkspace(1<<20, false, 1<<20)
	selecting(t, r, "labelSelector=none!=x")
	r.choice = wire.Choice{Partial: true, Pretty: true}
	r.form = wire.NewForm(r.choice, configMaps)
	if _, err := r.page(snapshot, "a/", "a0"); !errors.Is(err, Form) {
		t.Errorf("no forward: %v", err)
	}
}

// The pieces of a long list take turns with other expensive reads. A client that does not read
// holds no slot.
func TestWritesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := fair.NewQueue(1, false, 1<<20)
		r, _ := metered(t, 1, slots)
		if err := slots.Take(t.Context(), fair.Claim{User: "other", Size: 1}); err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, fair.WriteSize)
		list := &derived.List{Pieces: [][]byte{piece, piece, piece}, Length: 3 * fair.WriteSize}
		resp := r.listAnswer(list, list.Length)
		wrote, stuck := 0, make(chan struct{})
		go func() {
			if _, err := resp.WriteBody(t.Context(), writerFunc(func(p []byte) (int, error) {
				if wrote += len(p); wrote > 2*fair.WriteSize {
					<-stuck
				}
				return len(p), nil
			}), nil, nil); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if wrote != 0 {
			t.Errorf("%d bytes were written while another one had the slot", wrote)
		}
		slots.Give("other", 1)
		if err := slots.Take(t.Context(), fair.Claim{User: "other", Size: 1}); err != nil {
			t.Fatal(err)
		}
		slots.Give("other", 1)
		close(stuck)
		synctest.Wait()
		if slots.Taken() != 0 || wrote != 3*fair.WriteSize {
			t.Errorf("%d slots are held, %d bytes were written", slots.Taken(), wrote)
		}
	})
}

// A client that does not read even the beginning of an expensive list holds no slot.
func TestUnreadListHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := fair.NewQueue(1, false, 1<<20)
		r, snapshot := metered(t, 5000, slots)
		selecting(t, r, "labelSelector=none!=x")
		r.choice.Pretty = true
		resp := pageAt(t, r, snapshot, "a/")
		r.meter.End()
		if err := r.meter.Spend(fair.CheapWork); err != nil { // the first piece then needs a slot
			t.Fatal(err)
		}
		unread := make(chan struct{})
		go func() {
			if _, err := resp.WriteBody(t.Context(), writerFunc(func(p []byte) (int, error) {
				<-unread
				return len(p), nil
			}), nil, nil); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if slots.Taken() != 0 {
			t.Error("a slot is held")
		}
		close(unread)
		synctest.Wait()
	})
}
