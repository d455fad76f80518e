package watch

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// arrived is a stream that calls starved when a client needs more bytes.
type arrived struct {
	*bytes.Reader
	starved func()
}

func (a arrived) ReadByte() (byte, error) {
	if a.Len() == 0 {
		a.starved()
	}
	return a.Reader.ReadByte()
}

func (a arrived) Read(p []byte) (int, error) {
	if a.Len() == 0 {
		a.starved()
	}
	return a.Reader.Read(p)
}

// decompressed returns the plain bytes that a client has read before it needs more bytes. The stream
// must be one gzip member. Before its end, err is io.ErrUnexpectedEOF.
func decompressed(stream []byte) (plain []byte, err error) {
	var read bytes.Buffer
	came := -1
	rest := arrived{bytes.NewReader(stream), func() {
		if came < 0 {
			came = read.Len()
		}
	}}
	z, err := gzip.NewReader(rest)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	if _, err = io.Copy(&read, z); err != nil {
		return read.Bytes()[:max(0, came)], err
	}
	if rest.Len() > 0 {
		err = io.ErrShortWrite
	}
	return read.Bytes(), err
}

// countedForm counts the events that it writes.
type countedForm struct {
	wire.Form
	n int
}

func (f *countedForm) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	f.n++
	return f.Form.AppendEvent(dst, kind, o)
}

// Compressed watches have the bytes of plain watches, and a client can read each event as soon as it
// arrives. Each event is compressed once for all watches of a form, whatever its size, and however
// many events arrive at a time.
func TestCompressedWatches(t *testing.T) {
	synctest.Test(t, compressedWatches) // the age of an event decides whether it is kept
}

func compressedWatches(t *testing.T) {
	seed := cachetest.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	c, _ := cachetest.Roomy(t)
	for i := range 100 {
		cachetest.Apply(t, c, cachetest.ConfigMap(t, i, i+2))
	}
	cachetest.SetBookmark(t, c)
	initial := cachetest.Snapshot(t, c)
	kind := wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}
	choices := []wire.Choice{{}, {}, {MediaType: wire.Protobuf, Partial: true}, {Partial: true}, {Partial: true}}
	forms := map[wire.Choice]*countedForm{}
	var events Events
	var plain, packed []*Watch
	outs, got := map[*Watch]*exchange.ChunkWriter{}, map[*Watch]*bytes.Buffer{}
	for i, choice := range choices {
		for _, compressed := range []*Events{nil, &events} {
			p := paramsOf(t, c, initial)
			p.Form, p.Choice, p.Events, p.Compressed, p.Bookmarks = wire.NewForm(choice, kind), choice, compressed, compressed != nil, true
			p.Meter = new(fair.Meter)
			if i > 0 {
				p.Initial = begins(p, initial)
			}
			if compressed != nil {
				if forms[choice] == nil {
					forms[choice] = &countedForm{Form: p.Form}
				}
				p.Form = forms[choice]
			}
			to := new(bytes.Buffer)
			out := &exchange.ChunkWriter{To: to, Unchunked: true}
			w := opened(t, p, out)
			got[w], outs[w] = to, out
			if compressed == nil {
				plain = append(plain, w)
			} else {
				packed = append(packed, w)
			}
		}
	}
	for _, f := range forms {
		f.n = 0
	}
	s := NewScratch()
	defer s.Free()
	written, rv := 0, int(initial.ResourceVersion())
	for range 25 {
		for range 1 + random.IntN(150) {
			rv += 1 + random.IntN(100) // most writes of a cluster are to other resources
			written++
			o := cachetest.ConfigMap(t, random.IntN(100), rv)
			if random.IntN(40) == 0 {
				o = cachetest.Sized(t, uint64(rv), cachetest.AnySize(random, 200<<10))
			}
			cachetest.Apply(t, c, o)
		}
		for _, w := range append(plain, packed...) {
			on, behind := w.Step(t.Context(), outs[w], s)
			for on && behind {
				on, behind = w.Step(t.Context(), outs[w], nil)
			}
			if !on {
				t.Fatalf("the watch ends: %s", w.Reason())
			}
		}
		for i, w := range packed {
			if read, err := decompressed(got[w].Bytes()); !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Equal(read, got[plain[i]].Bytes()) {
				t.Fatalf("%v: %d bytes instead of %d, then %v", choices[i], len(read), got[plain[i]].Len(), err)
			}
		}
	}
	for choice, f := range forms {
		if f.n != written {
			t.Errorf("%v: %d events were compressed %d times", choice, written, f.n)
		}
	}
	for i, w := range packed {
		w.schedule.deadline = time.Now()
		w.alarm.Wake()
		if on, _ := w.Step(t.Context(), outs[w], s); on {
			t.Fatal("the watch goes on")
		}
		if read, err := decompressed(got[w].Bytes()); err != nil || len(read) < got[plain[i]].Len() {
			t.Errorf("%v: the watch ends with %v", choices[i], err)
		}
	}
}
