package read

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// A compressed list equals the plain list, however lists overlap and whichever changes happen after
// their segments are made. Each segment follows the context that it was made for.
func TestCompressedListsAreThePlainOnes(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	const objects = 3000
	r, _ := pageOf(t, objects, 0)
	r.Gzip = true
	r.derived = newDerived(t, 1<<20)
	plain := *r
	plain.Gzip = false
	for step := range 40 {
		o := objectOf(t, r.resource, `{"metadata":{"name":"c-%06d","namespace":"a","uid":"u","resourceVersion":"%d","labels":{"x":"%x"}}}`,
			random.IntN(objects), objects+2+step, random.Uint64())
		cachetest.Apply(t, r.cache, o)
		snapshot := cachetest.Snapshot(t, r.cache)
		r.choice = wire.Choice{Partial: step%2 == 0}
		r.form = wire.NewForm(r.choice, configMaps)
		r.Limit = []int64{0, 2000 + random.Int64N(1000)}[random.IntN(2)]
		plain.choice, plain.form, plain.Limit = r.choice, r.form, r.Limit
		from := fmt.Sprintf("a/c-%06d", random.IntN(200))
		if r.Limit == 0 && random.IntN(2) == 0 {
			from = "a/"
		}
		want := bodyOf(t, pageAt(t, &plain, snapshot, from))
		got := unzipped(t, bodyOf(t, pageAt(t, r, snapshot, from)))
		if !bytes.Equal(got, want) {
			t.Fatalf("step %d, from %s, limit %d: %d bytes differ from %d", step, from, r.Limit, len(got), len(want))
		}
	}
}

// Lists that wait for slow clients share derived bytes, even bytes that the store does not keep. So
// there is no copy for each client. The store forgets pieces that no list needs.
func TestWaitingListsShareDerivedRuns(t *testing.T) {
	const objects, lists = 3000, 20
	const own = 1 << 10 // the bytes of a list besides its items
	for _, encoding := range []string{"", "gzip"} {
		r, snapshot := pageOf(t, objects, 0)
		r.Gzip = encoding != ""
		r.choice = wire.Choice{Partial: true}
		r.form = wire.NewForm(r.choice, configMaps)
		r.derived = newDerived(t, 1) // too small to keep any piece
		want := bodyOf(t, pageAt(t, r, snapshot, "a/"))
		var waiting []*exchange.Response
		pieces := map[*byte]int{} // the length of each piece of all lists
		for range lists {
			resp := pageAt(t, r, snapshot, "a/")
			waiting = append(waiting, resp)
			for _, p := range resp.Body.(*fair.List).Content.(*derived.List).Pieces {
				pieces[unsafe.SliceData(p)] = len(p)
			}
		}
		held := 0
		for _, length := range pieces {
			held += length
		}
		if held > len(want)+lists*own {
			t.Errorf("%q: %d lists of %d bytes hold %d bytes", encoding, lists, len(want), held)
		}
		for _, resp := range waiting {
			var got bytes.Buffer
			if _, err := resp.Body.(*fair.List).Content.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%q: %d bytes instead of %d, %v", encoding, got.Len(), len(want), err)
			}
		}
		waiting = nil
		forgotten := func() bool {
			runtime.GC()
			known := 0
			r.derived.Shared.Range(func(any, any) bool { known++; return true })
			return known == 0
		}
		// Cleanups have no fixed time.
		for end := time.Now().Add(time.Minute); !forgotten(); runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatal("an unused list is not forgotten")
			}
		}
	}
}

type writerFunc func(p []byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
