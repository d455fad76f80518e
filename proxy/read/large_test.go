package read

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// largeOf returns a get of an object of some length.
func largeOf(t *testing.T, length int, choice wire.Choice, memory int64) (*read, *object.Object) {
	t.Helper()
	r, _ := pageOf(t, 0, 0)
	const empty = `{"metadata":{"name":"big","namespace":"a","uid":"u","resourceVersion":"3"},"data":{"v":""}}`
	o := objectOf(t, r.resource, `{"metadata":{"name":"big","namespace":"a","uid":"u","resourceVersion":"3"},"data":{"v":%q}}`,
		strings.Repeat("x", length-len(empty)))
	if len(o.Bytes()) != length {
		t.Fatalf("%d bytes", len(o.Bytes()))
	}
	cachetest.Apply(t, r.cache, o)
	r.Kind, r.Name, r.Client = wire.Get, "big", exchange.Nobody{}
	r.RVGiven = true
	r.meter = fair.NewMeter(t.Context(), r.Request, fair.NewSlots(1), true)
	r.Memory = fair.NewPool(memory, false).Holding("")
	r.choice, r.form = choice, wire.NewForm(choice, configMaps)
	return r, o
}

// A large object in another form than the cache's is upstream's to write. In the cache's form, its
// memory is claimed before its body is made.
func TestLargeObjects(t *testing.T) {
	const small, large = exchange.SmallBody, exchange.SmallBody + 1
	for _, c := range []struct {
		length int
		choice wire.Choice
		want   error
	}{
		{small, wire.Choice{Partial: true}, nil},
		{small, wire.Choice{}, nil},
		{large, wire.Choice{Partial: true}, TooLarge},
		{large, wire.Choice{}, nil},
		{1 << 20, wire.Choice{}, nil},
	} {
		r, o := largeOf(t, c.length, c.choice, 1<<30)
		memory := fair.NewPool(1<<30, false)
		r.Memory = memory.Holding("")
		resp, err := r.get(t.Context())
		if !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		if held := memory.Taken(); (held >= int64(c.length)) != (c.length > small) {
			t.Errorf("%+v: %d bytes of memory are held", c, held)
		}
		want, err := r.form.AppendObject(nil, o)
		if got := bodyOf(t, resp); err != nil || string(got) != string(want) {
			t.Errorf("%+v: %d bytes instead of %d, %v", c, len(got), len(want), err)
		}
	}
	r, o := largeOf(t, 1<<20, wire.Choice{}, 1<<30)
	r.Gzip = true
	if resp, err := r.get(t.Context()); err != nil {
		t.Error(err)
	} else if want, err := r.form.AppendObject(nil, o); err != nil || string(unzipped(t, bodyOf(t, resp))) != string(want) {
		t.Errorf("compressed: another body, %v", err)
	}
	r, _ = largeOf(t, 100<<10, wire.Choice{}, 2*exchange.SmallBody+100<<10) // too short to be compressed
	r.Gzip = true
	if _, err := r.get(t.Context()); err != nil {
		t.Errorf("not compressed: %v", err)
	}
	r, _ = largeOf(t, 1<<20, wire.Choice{}, 2<<20) // less than the body, the result and the compressor need
	r.Gzip = true
	if _, err := r.get(t.Context()); !errors.Is(err, TooLarge) {
		t.Errorf("compressed without room: %v", err)
	}
	r, _ = largeOf(t, large, wire.Choice{}, large)
	r.form = unwritten{r.form, t}
	if _, err := r.get(t.Context()); !errors.Is(err, TooLarge) {
		t.Errorf("without room: %v", err)
	}
}

// unwritten is a form in which no object may be written.
type unwritten struct {
	wire.Form
	t *testing.T
}

func (u unwritten) AppendObject(dst []byte, _ wire.Object) ([]byte, error) {
	u.t.Error("the body is made without room")
	return dst, nil
}

// A get in another form takes a turn by what it costs.
func TestGetsInOtherFormsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, custom := range []bool{false, true} {
			r, _ := largeOf(t, 60<<10, wire.Choice{Partial: true}, 1<<30)
			r.resource.SelfDescribing = custom
			slots := fair.NewPool(1, false)
			r.meter = fair.NewMeter(t.Context(), r.Request, &fair.Slots{Short: slots, Long: slots}, true)
			if err := slots.Take(t.Context(), "other", 1); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := r.get(t.Context())
				r.meter.End()
				done <- err
			}()
			synctest.Wait()
			if waits := len(done) == 0; waits != custom { // otherwise it is cheap
				t.Errorf("of a custom resource %t: it waits %t", custom, waits)
			}
			if cost := r.variant(true).Cost; (cost > 1) != custom {
				t.Errorf("of a custom resource %t: a list costs %d", custom, cost)
			}
			slots.Give("other", 1)
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// A watch in another form than the cache's writes a large event when there is room for it. Without room
// it ends, and the next one begins as usual. Gets of such objects, and of long rows, are forwarded.
func TestLargeRows(t *testing.T) {
	long := strings.Repeat("x", 70<<10)
	for name, c := range map[string]struct {
		object, row  string
		memory       int64
		ends, served bool
	}{
		"large":          {long, long, 1 << 20, false, false},
		"large, no room": {long, long, 64 << 10, true, false},
		"long row":       {"short", long + long, 1 << 20, false, false},
		"neither":        {"short", "short", 1 << 10, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJoined(t)
				j.memory = fair.NewPool(c.memory, false)
				j.reader.Memory = j.memory
				time.Sleep(time.Hour)
				j.reset(10)
				v := version{0, 11, time.Now(), c.object}
				cachetest.Apply(t, j.objects, j.object(v))
				v.text = c.row
				cachetest.Apply(t, j.rows, j.row(v))
				var written strings.Builder
				open := func() error {
					r := j.read(true, "")
					r.Kind, r.Watch, r.RV, r.WatchSeconds = wire.Watch, true, 10, 60
					resp, err := j.reader.watch(context.Background(), r)
					if err == nil {
						resp.Body.(exchange.Stream).Run(t.Context(), &exchange.ChunkWriter{To: &written, Unchunked: true})
					}
					return err
				}
				began := time.Now()
				if err := open(); err != nil {
					t.Fatal(err)
				}
				if ends := time.Since(began) == 0; ends != c.ends || ends == strings.Contains(written.String(), c.object) {
					t.Errorf("the watch ends at once: %t; it has written %d bytes", ends, written.Len())
				}
				if held := j.memory.Taken(); held != 0 {
					t.Errorf("%d bytes are held", held)
				}
				if err := open(); err != nil {
					t.Errorf("the second watch: %v", err)
				}
				r := j.read(false, "")
				r.Kind, r.Name, r.RVGiven = wire.Get, "c-000000", true
				if _, err := r.get(t.Context()); errors.Is(err, TooLarge) == c.served {
					t.Errorf("a get: %v", err)
				}
				if _, noted := j.objects.Notes.Load(unwritable{}); noted {
					t.Error("watches of metadata count as unwritable")
				}
			})
		})
	}
}

// A list of large objects in another form, or compressed, takes a turn for each megabyte at least.
// Otherwise other lists would wait for as many objects as a page has.
func TestTurnsOfLargeObjectsAreDivided(t *testing.T) {
	const objects, length, most = 12, 300 << 10, 1 << 20
	for _, gzip := range []bool{false, true} {
		r, _ := largeOf(t, length, wire.Choice{Partial: true}, 1<<30)
		if gzip {
			r.Gzip = true
		}
		for i := range objects {
			cachetest.Apply(t, r.cache, objectOf(t, r.resource,
				`{"metadata":{"name":"o-%d","namespace":"a","uid":"u","resourceVersion":"%d","labels":{"a":%q}}}`, i, 4+i, strings.Repeat("x", length)))
			turns := &turns{Claimant: r.Request}
			r.meter, r.resource.SelfDescribing = fair.NewMeter(t.Context(), turns, fair.NewSlots(1), false), true
			r.derived = derived.New(1<<30, prometheus.NewRegistry())
			from, _ := r.filter.KeyRange(r.resource)
			pageAt(t, r, cachetest.Snapshot(t, r.cache), from).Close(0)
			r.meter.End()
			r.derived.Close()
			if turns.n*most < (i+1)*length {
				t.Errorf("compressed %t: %d turns for %d objects", gzip, turns.n, i+1)
			}
		}
	}
}

// turns counts the turns of a claimant.
type turns struct {
	fair.Claimant
	n int
}

// User implements fair.Claimant. A meter calls it once for each turn.
func (t *turns) User() string {
	t.n++
	return t.Claimant.User()
}
