package h2

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// FuzzFrames sends arbitrary bytes after the preface. Either the connection ends and nothing of it
// is left, or it continues to answer PINGs. Time is virtual: a silent connection costs none.
func FuzzFrames(f *testing.F) {
	hello := appendSettings(nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []string{":method POST", ":scheme https", ":path /", "content-length 4"} {
		name, value, _ := strings.Cut(field, " ")
		encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	head := func(flags http2.Flags) []byte {
		return append(appendHead(bytes.Clone(hello), block.Len(), http2.FrameHeaders, flags, 1), block.Bytes()...)
	}
	begun := head(http2.FlagHeadersEndHeaders)
	f.Add([]byte{})
	f.Add(hello)
	f.Add(head(0))
	f.Add(appendEnd(appendData(begun, 1, []byte("data")), 1))
	f.Add(appendData(begun, 1, []byte("too long")))
	f.Add(appendReset(begun, 1, http2.ErrCodeCancel))
	f.Add(appendWindowUpdate(begun, 1, windowMax))
	f.Add(appendGoaway(appendPing(begun, 0, [8]byte{}), 0, http2.ErrCodeNo))
	f.Add(appendSettings(bytes.Clone(begun), http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowMax}))
	f.Add(bytes.Repeat(append(appendHead(nil, 0, http2.FrameContinuation, 0, 1), hello...), 10))
	f.Fuzz(func(t *testing.T, raw []byte) {
		synctest.Test(t, func(t *testing.T) {
			s := scene{bare: true}.open(t, newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
				if req.Body != nil {
					_, _ = io.Copy(io.Discard, req.Body)
				}
				return says(pattern(100 << 10))
			}, limits()))
			defer func() {
				s.close()
				<-s.served
			}()
			answered := false
			s.play("mute preface")
			s.do(func() { s.mu.unsent.Write(raw) })
			synctest.Wait()
			s.do(func() { s.pingLocked(func() { answered = true }) }) // may end a frame that raw has begun
			_ = s.await(func() bool { return answered })
		})
	})
}

// FuzzStreams runs operations on a connection against a model of the windows and streams, which the
// client keeps. Each operation is followed until it has no more effects. Then all bytes that the
// windows allow must have arrived. At the end all windows open, and each response must arrive
// completely.
func FuzzStreams(f *testing.F) {
	op := func(kind, stream byte, n uint16) []byte {
		return binary.BigEndian.AppendUint16([]byte{kind, stream}, n)
	}
	program := func(all ...[]byte) []byte { return bytes.Join(all, nil) }
	for _, socket := range []bool{false, true} {
		f.Add(socket, uint32(windowInitial), program(op(opGet, 0, 60000), op(opGet, 0, 60000), op(opConnWindow, 0, 100)))
		f.Add(socket, uint32(1), program(op(opGet, 0, 500), op(opWindow, 0, 3), op(opSettings, 0, 20), op(opSettings, 0, 0), op(opWindow, 0, 10)))
		f.Add(socket, uint32(10), program(op(opWatch, 0, 0), op(opEvent, 0, 1000), op(opWindow, 0, 400), op(opEvent, 0, 40000), op(opCut, 0, 0)))
		f.Add(socket, uint32(10), program(op(opWatch, 0, 0), op(opCut, 0, 0))) // its last event comes before its end
		f.Add(socket, uint32(1<<20), program(op(opWatch, 0, 0), op(opWatch, 0, 0), op(opEvent, 0, 60000), op(opEvent, 0, 60000),
			op(opConnWindow, 0, 9), op(opReset, 0, 0), op(opCut, 0, 0)))
		f.Add(socket, uint32(100), program(op(opUpload, 0, 1000), op(opData, 0, 500), op(opPing, 0, 0), op(opData, 0, 500), op(opEnd, 0, 0), op(opReset, 0, 0)))
		f.Add(socket, uint32(1<<16), program(op(opRead, 0, 100), op(opGet, 0, 50000), op(opRead, 0, 9000), op(opWatch, 0, 0), op(opEvent, 0, 10), op(opReset, 1, 0)))
	}
	random := rand.New(rand.NewPCG(cachetest.Seed(f), 0))
	for range cachetest.Rounds(40, 1000) {
		p := make([]byte, 4*(1+random.IntN(64)))
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		f.Add(random.IntN(2) == 0, uint32(cachetest.AnySize(random, 1<<20)), p)
	}
	f.Fuzz(func(t *testing.T, socket bool, window uint32, program []byte) {
		const most = 4 * 64
		program = program[:min(len(program), most)]
		synctest.Test(t, func(t *testing.T) { run(t, socket, window, program) })
	})
}
